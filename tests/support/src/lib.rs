//! What several test programs of libnccl share.

#![deny(unsafe_code)]

pub mod executor;
pub mod fake_nccl;
mod function_table;

pub use function_table::restricted;

//! What several test programs of libnccl share.

#![deny(unsafe_code)]

pub mod executor;
pub mod fake_nccl;
mod function_table;
pub mod random_inputs;
#[cfg(unix)]
mod shared_objects;
pub mod time_limit;

pub use function_table::restricted;
#[cfg(unix)]
pub use shared_objects::{install, shared_object};

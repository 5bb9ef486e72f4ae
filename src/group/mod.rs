//! Groups of operations that NCCL starts together.

pub(crate) mod open;
pub(crate) mod participants;
mod scope;

pub use scope::Group;

//! Groups of operations that NCCL starts together.

mod init_all;
pub(crate) mod open;
pub(crate) mod participants;
mod scope;

pub use scope::Group;

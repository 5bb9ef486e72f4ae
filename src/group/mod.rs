//! Groups of operations that NCCL starts together.

mod init_all;
mod participants;
mod scope;

pub(crate) use participants::{JoinedOperation, Participants};
pub use scope::Group;

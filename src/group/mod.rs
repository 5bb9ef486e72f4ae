//! Groups of operations that NCCL starts together.

#[allow(clippy::module_inception)] // The type has the name of the module.
mod group;
mod participants;

pub use group::Group;
pub(crate) use participants::Participants;

//! Helpers shared by libnccl's test programs.

#![deny(unsafe_code)]

pub mod fake_nccl;
pub mod random_inputs;
#[cfg(unix)]
mod shared_objects;
pub mod time_limit;

use libnccl::{Communicator, Config, Nccl, Result};
#[cfg(unix)]
pub use shared_objects::{install, install_as, replace, shared_object};

/// Creates all ranks of a communicator in a group.
pub fn init_in_group(nccl: &Nccl, size: usize, config: &Config) -> Result<Vec<Communicator>> {
    let id = nccl.unique_id()?;
    let begin = |rank| nccl.communicator(size, rank, &id).config(config);
    let pending = nccl.group(|g| (0..size).map(|rank| begin(rank).init_in(g)).collect::<Result<Vec<_>>>())?;
    // If one fails, dropping the others destroys them.
    pending.into_iter().map(|pending| pending.finish()).collect()
}

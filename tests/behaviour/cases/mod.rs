//! The cases, and which of them run with an implementation.

mod arguments;
mod common;
mod element_types;
mod groups;
mod lifecycle;
mod no_communicator;
mod nonblocking;
mod parameters;

use libnccl::Nccl;
use libnccl::buffer::MemorySpace;

use common::Case;

/// The cases that need communicators of host memory.
const ON_HOST_MEMORY: &[&[Case]] =
    &[arguments::CASES, element_types::CASES, groups::CASES, lifecycle::CASES, nonblocking::CASES];

/// The cases that run with an implementation: all if it works on host memory, otherwise those that need no
/// communicator.
pub(crate) struct Selection {
    pub(crate) run: Vec<Case>,
    pub(crate) skipped: Vec<Case>,
}

impl Selection {
    pub(crate) fn of(nccl: &Nccl) -> Self {
        let mut run = [no_communicator::CASES, parameters::CASES].concat();
        let on_host_memory = ON_HOST_MEMORY.concat();
        if nccl.memory_space() == MemorySpace::Host {
            run.extend(on_host_memory);
            return Self { run, skipped: Vec::new() };
        }
        Self { run, skipped: on_host_memory }
    }
}

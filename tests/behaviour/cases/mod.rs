//! The cases.

mod arguments;
mod common;
mod element_types;
mod groups;
mod lifecycle;
mod no_communicator;
mod nonblocking;
mod parameters;

use common::Case;

/// The cases that need communicators of host memory.
pub(crate) fn on_host_memory() -> Vec<Case> {
    [arguments::CASES, element_types::CASES, groups::CASES, lifecycle::CASES, nonblocking::CASES].concat()
}

/// The cases that need no communicator.
pub(crate) fn without_communicator() -> Vec<Case> {
    [no_communicator::CASES, parameters::CASES].concat()
}

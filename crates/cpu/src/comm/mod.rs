//! Communicators, their handles, and the groups in which their calls run.
//!
//! `bootstrap` finds the other ranks, `coll` contains the operations of collectives. Neither depends on communicators.

pub(crate) mod agreement;
pub(crate) mod communicator;
pub(crate) mod config;
pub(crate) mod group;
pub(crate) mod handle;
pub(crate) mod init;
pub(crate) mod invalid_buffer;
pub(crate) mod jobs;
pub(crate) mod open_group;
pub(crate) mod queued_operation;
pub(crate) mod registry;
mod state;
pub(crate) mod window;

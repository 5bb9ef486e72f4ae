//! Communicators, from `ncclCommInitRank` to `ncclCommDestroy`, and the groups that calls on them run in.
//!
//! In: checked arguments from `abi`. Out: handles, and operations handed to the executor with the context that they run
//! in. `bootstrap` finds the other ranks, `coll` knows what an operation does; neither knows a communicator.

pub(crate) mod agreement;
pub(crate) mod children;
pub(crate) mod communicator;
pub(crate) mod config;
pub(crate) mod custom_reductions;
pub(crate) mod devices;
mod end;
pub(crate) mod fork;
pub(crate) mod group;
pub(crate) mod grow;
pub(crate) mod handle;
pub(crate) mod init;
pub(crate) mod invalid_buffer;
pub(crate) mod jobs;
pub(crate) mod join;
pub(crate) mod out_param;
pub(crate) mod queue;
pub(crate) mod queued_calls;
mod queued_operation;
pub(crate) mod references;
pub(crate) mod registry;
pub(crate) mod shrink;
pub(crate) mod split;
mod stream_job;
pub(crate) mod stream_jobs;
pub(crate) mod suspend;
mod thread_job;
pub(crate) mod window;

//! Operations: collectives, send and receive, one-sided operations, windows.
//!
//! In: an operation's arguments as safe types, and the [`CallContext`](crate::shm::call_context) of the rank that calls
//! it. Out: the result in the receive buffers. Nothing here knows communicators, handles or groups: an operation is a
//! future that `sync::executor` polls.

pub(crate) mod call_check;
pub(crate) mod call_header;
pub(crate) mod collective;
pub(crate) mod control_allgather;
pub(crate) mod function;
mod local_call;
mod on_buffers;
pub(crate) mod on_stream;
pub(crate) mod operation;
pub(crate) mod plan;
mod rank_args;
mod sizes;
mod transport;
pub(crate) mod wait_report;
pub(crate) mod wrong_element;

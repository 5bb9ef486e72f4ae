//! Rendezvous: ranks that have only a unique id in common come to share memory.
//!
//! In: a unique id, the number of ranks, this rank's number. Out: the ranks' [`SharedState`](crate::shm::shared_state).
//! The rank that comes first is the root: it accepts the others (the peers) at an abstract Unix socket that the id
//! names, creates the memory and sends each of their processes its file descriptor. Ranks of one process share a connection
//! and a mapping.

mod election;
mod hello;
pub(crate) mod join_context;
mod message;
mod peer;
pub(crate) mod rendezvous;
mod root;
mod shared_join;
mod socket;
pub(crate) mod unique_id;

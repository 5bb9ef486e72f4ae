//! Rendezvous: ranks that only have a unique id in common come to share memory.
//!
//! In: a unique id, the number of ranks, this rank's number. Out: the ranks' [`SharedState`](crate::shm::shared_state).
//! The first rank to arrive is the root: it accepts the others (the peers) at an abstract Unix socket that the id names,
//! creates the memory and sends its file descriptor to each of their processes. Ranks of one process share a connection and
//! a mapping.

mod find_root;
pub(crate) mod join;
pub(crate) mod rendezvous;
mod root;
pub(crate) mod unique_id;
mod wire;

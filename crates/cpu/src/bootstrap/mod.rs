//! Rendezvous: lets ranks that share only a unique id set up shared memory.
//!
//! Input: a unique id, the number of ranks, this rank's number. Output: the ranks' [`SharedState`](crate::shm::shared_state). The
//! first rank to arrive is the root: it accepts the other ranks (the peers) at an abstract Unix socket named by the id, creates
//! the memory and sends its file descriptor to each peer's process. Ranks of one process share a connection and a mapping.

mod find_root;
pub(crate) mod join;
pub(crate) mod rendezvous;
mod root;
pub(crate) mod unique_id;
mod wire;

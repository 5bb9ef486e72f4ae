//! Memory that ranks share, and what one rank may do with another's.
//!
//! In: the processes of the ranks. Out: words to synchronize by, bytes to stage data in, the abort flag, and access to
//! other ranks' buffers. What is published in the words, and when, is for `coll`.

pub(crate) mod access;
pub(crate) mod buffer;
pub(crate) mod call_context;
pub(crate) mod layout;
pub(crate) mod liveness;
pub(crate) mod mailbox;
pub(crate) mod mapping;
pub(crate) mod mem_alloc;
pub(crate) mod peer_access;
pub(crate) mod process;
mod segment;
pub(crate) mod shared_state;
pub(crate) mod window_memory;

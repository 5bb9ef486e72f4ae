//! Memory shared by ranks, and access to other ranks' memory.
//!
//! Input: the ranks' processes. Output: words for synchronization, bytes for staging, the abort flag, and access to other
//! ranks' buffers. `coll` defines the content of the words, and when it is published.

pub(crate) mod access;
pub(crate) mod buffer;
pub(crate) mod call_context;
pub(crate) mod layout;
pub(crate) mod liveness;
pub(crate) mod mailbox;
pub(crate) mod mapping;
pub(crate) mod mem_alloc;
pub(crate) mod process;
mod segment;
pub(crate) mod shared_state;
pub(crate) mod window_memory;

//! Waiting for other ranks: running futures on the calling thread, backing off, and the atomics that loom replaces.

pub(crate) mod backoff;
pub(crate) mod executor;
pub(crate) mod primitive;

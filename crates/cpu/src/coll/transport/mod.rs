//! Transports: the three ways to move the bytes of a collective. All follow the same [`plan`](super::plan), so a result
//! does not depend on size, memory or number of processes.

pub(super) mod direct;
pub(super) mod eager;
mod kernel;
pub(super) mod staged;

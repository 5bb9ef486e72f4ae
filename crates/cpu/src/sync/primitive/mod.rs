//! Atomics, and hooks for accesses to plain bytes, both of which loom replaces.
//!
//! Ordinary builds use the standard library's atomics and empty hooks. `--cfg loom` tests use loom's atomics, and hooks that
//! report to loom which bytes a thread reads and writes.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, fence};

#[cfg(not(all(test, loom)))]
mod native;
#[cfg(not(all(test, loom)))]
pub(crate) use native::{AtomicWords, note_read, note_write, sleep_on, track, untrack, wake_all};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU64, fence};

#[cfg(all(test, loom))]
mod modelled;
#[cfg(all(test, loom))]
pub(crate) use modelled::{AtomicWords, GRAIN, note_read, note_write, sleep_on, track, untrack, wake_all};

/// Set under loom, whose models need small memory and short calls.
pub(crate) const LOOM: bool = cfg!(all(test, loom));

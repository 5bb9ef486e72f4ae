//! Locks and threads, which loom replaces in `--cfg loom` tests.

#[cfg(not(all(test, loom)))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

#[cfg(all(test, loom))]
pub(crate) use loom::{
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

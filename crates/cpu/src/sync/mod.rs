//! Waiting for other ranks: an executor for the calling thread, backoff, and the atomics that loom replaces.

pub(crate) mod backoff;
pub(crate) mod executor;
pub(crate) mod primitive;

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread has panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the calling thread's number, unique in the process. `std::thread::current` panics in destructors of pthread keys.
pub(crate) fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    if NUMBER.get() == 0 {
        NUMBER.set(LAST.fetch_add(1, Relaxed) + 1);
    }
    NUMBER.get()
}

//! Waiting for other ranks: running futures on the calling thread, backing off, and the atomics that loom replaces.

pub(crate) mod backoff;
pub(crate) mod executor;
pub(crate) mod primitive;

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Returns the number of the calling thread, which no other thread of the process has. `std::thread::current` panics in the
/// destructors of pthread keys.
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

//! Loom's atomics, and hooks that report accesses to plain bytes to loom.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;

/// The number of bytes that are tracked as a unit. Bytes that ranks access concurrently are at least this far apart.
pub(crate) const GRAIN: usize = 16;

thread_local! {
    /// The tracked memory by start address. All threads of a model run on one system thread.
    static TRACKED: RefCell<BTreeMap<usize, Tracked>> = const { RefCell::new(BTreeMap::new()) };
}

struct Tracked {
    length: usize,
    grains: Vec<UnsafeCell<()>>,
}

/// Loom's atomics, which replace the words of a mapping.
#[derive(Debug)]
pub(crate) struct AtomicWords(Vec<AtomicU64>);

impl AtomicWords {
    /// # Safety
    ///
    /// None: the mapping's own words are not used.
    pub(crate) unsafe fn new(_start: NonNull<u8>, count: usize) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns `N` words starting at `index`.
    ///
    /// # Safety
    ///
    /// None: the bounds are checked.
    pub(crate) unsafe fn get<const N: usize>(&self, index: usize) -> &[AtomicU64; N] {
        self.0[index..].first_chunk().unwrap()
    }
}

/// Starts tracking accesses to `length` bytes at `start`, initially considered written by the calling thread.
pub(crate) fn track(start: *const u8, length: usize) {
    let grains = (0..length.div_ceil(GRAIN)).map(|_| UnsafeCell::new(())).collect();
    TRACKED.with_borrow_mut(|tracked| tracked.insert(start.addr(), Tracked { length, grains }));
}

/// Ends tracking. Fails the model unless every access happens before this call.
pub(crate) fn untrack(start: *const u8) {
    let tracked = TRACKED.with_borrow_mut(|tracked| tracked.remove(&start.addr()));
    if !std::thread::panicking() {
        tracked.iter().flat_map(|tracked| &tracked.grains).for_each(|grain| grain.with_mut(|_| ()));
    }
}

/// Records that the calling thread reads `length` bytes at `start`.
pub(crate) fn note_read(start: *const u8, length: usize) {
    for_each_grain(start, length, |grain| grain.with(|_| ()));
}

/// Records that the calling thread writes `length` bytes at `start`.
pub(crate) fn note_write(start: *const u8, length: usize) {
    for_each_grain(start, length, |grain| grain.with_mut(|_| ()));
}

/// Returns immediately, because models wait by yielding.
pub(crate) fn sleep_on(_word: &AtomicU64, _value: u64, _longest: Duration) {}

pub(crate) fn wake_all(_word: &AtomicU64) {}

/// Calls `access` for each grain of the bytes. Does nothing if the bytes are not tracked.
fn for_each_grain(start: *const u8, length: usize, access: impl Fn(&UnsafeCell<()>)) {
    TRACKED.with_borrow(|tracked| {
        let Some((first, memory)) = tracked.range(..=start.addr()).next_back() else { return };
        let at = start.addr() - first;
        if at < memory.length && length > 0 {
            assert!(length <= memory.length - at, "{length} bytes at {at} of {}", memory.length);
            memory.grains[at / GRAIN..(at + length).div_ceil(GRAIN)].iter().for_each(access);
        }
    });
}

//! Atomics, and hooks for accesses to plain bytes, both of which loom replaces.
//!
//! Ordinary builds use the standard library's atomics and empty hooks. `--cfg loom` tests use loom's atomics, and hooks that
//! report to loom which bytes a thread reads and writes.
#![allow(unsafe_code)]

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, fence};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU64, fence};

#[cfg(all(test, loom))]
#[path = "../../tests/models/primitive.rs"]
mod modelled;
#[cfg(all(test, loom))]
use modelled as implementation;
#[cfg(all(test, loom))]
pub(crate) use modelled::GRAIN;
#[cfg(not(all(test, loom)))]
use native as implementation;

pub(crate) use implementation::{AtomicWords, note_read, note_write, sleep_on, track, untrack, wake_all};

/// Set under loom, whose models need small memory and short calls.
pub(crate) const LOOM: bool = cfg!(all(test, loom));

#[cfg(not(all(test, loom)))]
mod native {
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicU32, AtomicU64};
    use std::time::Duration;

    use rustix::thread::futex::{Flags, Timespec, wait, wake};

    #[derive(Debug)]
    pub(crate) struct AtomicWords(NonNull<AtomicU64>);

    impl AtomicWords {
        /// # Safety
        /// At least `_count` aligned words at `start` must stay mapped during the lifetime of this value and only be accessed through
        /// it.
        pub(crate) unsafe fn new(start: NonNull<u8>, _count: usize) -> Self {
            Self(start.cast())
        }

        /// Returns `N` words starting at `index`.
        ///
        /// # Safety
        /// The words must be inside the count passed to `new`.
        #[inline]
        pub(crate) unsafe fn get<const N: usize>(&self, index: usize) -> &[AtomicU64; N] {
            // SAFETY: by this function's contract, inside the words that the caller of `new` guaranteed.
            unsafe { self.0.add(index).cast().as_ref() }
        }
    }

    /// Starts tracking accesses to `_length` bytes at `_start`.
    #[inline(always)]
    pub(crate) fn track(_start: *const u8, _length: usize) {}

    /// Ends tracking.
    #[inline(always)]
    pub(crate) fn untrack(_start: *const u8) {}

    /// Records that the calling thread reads `_length` bytes at `_start`.
    #[inline(always)]
    pub(crate) fn note_read(_start: *const u8, _length: usize) {}

    /// Records that the calling thread writes `_length` bytes at `_start`.
    #[inline(always)]
    pub(crate) fn note_write(_start: *const u8, _length: usize) {}

    /// Sleeps until a process that maps `word` calls [`wake_all`] for it, for at most `longest`. Returns immediately if the word is
    /// not equal to `value`, whose halves must be equal.
    pub(crate) fn sleep_on(word: &AtomicU64, value: u64, longest: Duration) {
        debug_assert_eq!(value >> 32, value & 0xffff_ffff);
        let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
        // The caller checks the word again regardless of the result.
        let _ = wait(half(word), Flags::empty(), value as u32, Some(&longest));
    }

    pub(crate) fn wake_all(word: &AtomicU64) {
        let _ = wake(half(word), Flags::empty(), i32::MAX as u32);
    }

    /// Returns one half of `word`, because the kernel sleeps on 32 bits.
    fn half(word: &AtomicU64) -> &AtomicU32 {
        // SAFETY: inside `word` and aligned. Only the kernel accesses the half; programs access the whole word.
        unsafe { NonNull::from(word).cast().as_ref() }
    }
}

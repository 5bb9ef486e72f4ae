//! The atomics of ordinary builds, and hooks that do nothing.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::thread::futex::{Flags, Timespec, wait, wake};

/// The words at the start of a mapping, as atomics.
#[derive(Debug)]
pub(crate) struct AtomicWords(NonNull<AtomicU64>);

impl AtomicWords {
    /// # Safety
    ///
    /// At least `_count` words at `start` stay mapped and aligned for as long as this lives, and are accessed
    /// through it only.
    pub(crate) unsafe fn new(start: NonNull<u8>, _count: usize) -> Self {
        Self(start.cast())
    }

    /// Returns `N` words from `index` on.
    ///
    /// # Safety
    ///
    /// They are inside the count given to `new`.
    #[inline]
    pub(crate) unsafe fn get<const N: usize>(&self, index: usize) -> &[AtomicU64; N] {
        // SAFETY: inside the words that the caller of `new` vouched for, by this function's contract.
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

/// Sleeps until [`wake_all`] is called for `word`, by any process that maps it, for `longest` at most; not at all if its
/// value is not `value`, of which both halves are the same.
pub(crate) fn sleep_on(word: &AtomicU64, value: u64, longest: Duration) {
    debug_assert_eq!(value >> 32, value & 0xffff_ffff);
    let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    // However it ends, the caller looks again.
    let _ = wait(half(word), Flags::empty(), value as u32, Some(&longest));
}

/// Wakes all threads that sleep on `word`.
pub(crate) fn wake_all(word: &AtomicU64) {
    let _ = wake(half(word), Flags::empty(), i32::MAX as u32);
}

/// Returns a half of `word`, for the kernel, which sleeps on 32 bits.
fn half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: inside `word`, and as aligned. Only the kernel accesses it by this; programs do by the whole word.
    unsafe { NonNull::from(word).cast().as_ref() }
}

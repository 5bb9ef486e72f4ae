//! The atomics of ordinary builds, and hooks that do nothing.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

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

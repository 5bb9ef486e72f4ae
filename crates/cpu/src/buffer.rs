//! The caller's memory: where an operation reads from and where it writes to.
//!
//! Raw pointers and no slices, because an operation in place reads and writes the same bytes.
#![allow(unsafe_code)]

use std::ptr;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    start: *const u8,
    length: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    start: *mut u8,
    length: usize,
}

impl Source {
    /// # Safety
    ///
    /// `length` bytes at `start` can be read until the operation that takes this has ended.
    pub(crate) unsafe fn new(start: *const u8, length: usize) -> Self {
        Self { start, length }
    }

    /// Copies `bytes.len()` bytes from `at` on.
    pub(crate) fn read(self, at: usize, bytes: &mut [u8]) {
        let from = self.part(at, bytes.len());
        // SAFETY: `part` lies inside what `new`'s caller vouched for, and `bytes` is this crate's own memory.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Where the `length` bytes from `at` on begin; they can be read as `new` says.
    pub(crate) fn part(self, at: usize, length: usize) -> *const u8 {
        assert!(at <= self.length && length <= self.length - at, "read outside the caller's buffer");
        self.start.wrapping_add(at)
    }
}

impl Target {
    /// # Safety
    ///
    /// `length` bytes at `start` can be written, and nothing but the operation that takes this uses them,
    /// until it has ended.
    pub(crate) unsafe fn new(start: *mut u8, length: usize) -> Self {
        Self { start, length }
    }

    /// Copies `bytes` to `at`.
    pub(crate) fn write(self, at: usize, bytes: &[u8]) {
        let to = self.part(at, bytes.len());
        // SAFETY: `part` lies inside what `new`'s caller vouched for, and `bytes` is this crate's own memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Where the `length` bytes from `at` on begin; they can be written as `new` says.
    pub(crate) fn part(self, at: usize, length: usize) -> *mut u8 {
        assert!(at <= self.length && length <= self.length - at, "write outside the caller's buffer");
        self.start.wrapping_add(at)
    }
}

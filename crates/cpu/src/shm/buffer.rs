//! Memory that operations read from and write to: the caller's, or another rank's.
//!
//! Raw pointers instead of slices, because an in-place operation reads and writes the same bytes.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;
use std::slice;

use crate::sync::primitive;

/// Bytes to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadBuf {
    start: *const u8,
    length: usize,
}

/// Bytes to write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteBuf {
    start: *mut u8,
    length: usize,
}

// SAFETY: the memory is not bound to a thread; concurrent access is ruled out by `new`'s contract.
unsafe impl Send for ReadBuf {}
// SAFETY: as for Send: a shared reference gives no more access than a copy.
unsafe impl Sync for ReadBuf {}
// SAFETY: as for ReadBuf.
unsafe impl Send for WriteBuf {}
// SAFETY: as for ReadBuf.
unsafe impl Sync for WriteBuf {}

impl ReadBuf {
    /// # Safety
    ///
    /// `length` bytes at `start` can be read until the operation that takes this has ended, and no part of them is
    /// written while the operation reads it.
    pub(crate) unsafe fn new(start: *const u8, length: usize) -> Self {
        Self { start, length }
    }

    pub(crate) fn start(self) -> *const u8 {
        self.start
    }

    /// Returns the `length` bytes from `at` on. The slice must be dropped before the operation writes there.
    pub(crate) fn bytes(&self, at: usize, length: usize) -> &[u8] {
        if length == 0 {
            return &[];
        }
        primitive::note_read(self.address(at, length), length);
        // SAFETY: inside what `new`'s caller vouched for, who also guarantees that nothing writes there meanwhile.
        unsafe { slice::from_raw_parts(self.address(at, length), length) }
    }

    pub(crate) fn length(self) -> usize {
        self.length
    }

    /// Returns a part of the memory.
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        Self { start: self.address(range.start, range.len()), length: range.len() }
    }

    /// Returns `true` if some of the memory is also in `other`.
    pub(crate) fn overlaps(self, other: WriteBuf) -> bool {
        let (this, that) = (self.start.addr(), other.start.addr());
        this < that + other.length && that < this + self.length
    }

    /// Prefetches the memory into the cache.
    pub(crate) fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        for at in (0..self.length).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

            // SAFETY: SSE is part of x86_64, and a prefetch is a hint: any address is valid.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.start.wrapping_add(at).cast()) };
        }
    }

    /// Copies `bytes.len()` bytes from `at` on.
    pub(crate) fn read(self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.bytes(at, bytes.len()));
    }

    fn address(self, at: usize, length: usize) -> *const u8 {
        assert!(at <= self.length && length <= self.length - at, "read outside the caller's buffer");
        self.start.wrapping_add(at)
    }
}

impl WriteBuf {
    /// # Safety
    ///
    /// `length` bytes at `start` can be written until the operation that takes this has ended, and nothing else accesses
    /// a part of them while the operation writes it.
    pub(crate) unsafe fn new(start: *mut u8, length: usize) -> Self {
        Self { start, length }
    }

    pub(crate) fn start(self) -> *mut u8 {
        self.start
    }

    pub(crate) fn length(self) -> usize {
        self.length
    }

    /// Returns a part of the memory.
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        Self { start: self.address(range.start, range.len()), length: range.len() }
    }

    /// Returns the same memory, to read what has been written.
    pub(crate) fn as_read(self) -> ReadBuf {
        ReadBuf { start: self.start, length: self.length }
    }

    /// Fills the memory by `write`, which must not read from it.
    pub(crate) fn fill(self, write: impl FnOnce(&mut [u8])) {
        if self.length > 0 {
            primitive::note_write(self.start, self.length);
            // SAFETY: `new`'s caller vouched for the memory and for the operation being alone in it meanwhile.
            write(unsafe { slice::from_raw_parts_mut(self.start, self.length) });
        }
    }

    /// Copies all of `from`, which has the same length and either does not overlap or is the same memory.
    pub(crate) fn copy(self, from: ReadBuf, nontemporal: bool) {
        if self.start.cast_const() != from.start {
            let bytes = from.bytes(0, from.length);
            if nontemporal {
                self.write_nontemporal(0, bytes);
                store_fence();
            } else {
                self.write(0, bytes);
            }
        }
    }

    /// Copies `bytes`, which must not overlap this memory, to `at`.
    pub(crate) fn write(self, at: usize, bytes: &[u8]) {
        let to = self.address(at, bytes.len());
        primitive::note_write(to, bytes.len());
        // SAFETY: inside what `new`'s caller vouched for. A slice and memory that is written at the same time do not
        // overlap, by the contract of `new`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies `bytes` with non-temporal stores, for data that will not be read again soon: they neither fetch the lines
    /// that they overwrite nor evict others. A [`store_fence`] has to come before other ranks are told.
    pub(crate) fn write_nontemporal(self, at: usize, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

            let to = self.address(at, bytes.len());
            let head = to.align_offset(16).min(bytes.len());
            let (head, rest) = bytes.split_at(head);
            let (lines, tail) = rest.as_chunks::<16>();
            self.write(at, head);
            for (index, line) in lines.iter().enumerate() {
                // SAFETY: SSE2 is part of x86_64; the 16 bytes read are `line`, those written are inside this memory and
                // aligned, since `head` ends at a multiple of 16.
                unsafe {
                    let value = _mm_loadu_si128(line.as_ptr().cast::<__m128i>());
                    _mm_stream_si128(to.add(head.len() + 16 * index).cast::<__m128i>(), value);
                }
            }
            self.write(at + bytes.len() - tail.len(), tail);
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.write(at, bytes);
    }

    fn address(self, at: usize, length: usize) -> *mut u8 {
        assert!(at <= self.length && length <= self.length - at, "write outside the caller's buffer");
        self.start.wrapping_add(at)
    }
}

/// Orders non-temporal stores before the stores that follow.
pub(crate) fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86_64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nontemporal_write_writes_every_byte() {
        let bytes: Vec<u8> = (0..=255).collect();
        for (at, length) in [(0, 0), (3, 1), (1, 40), (16, 64), (7, 200)] {
            let mut memory = [0u8; 256];
            // SAFETY: the array is accessed through this only.
            let buffer = unsafe { WriteBuf::new(memory.as_mut_ptr(), memory.len()) };
            buffer.write_nontemporal(at, &bytes[..length]);
            let mut expected = [0u8; 256];
            expected[at..at + length].copy_from_slice(&bytes[..length]);
            assert_eq!(memory, expected, "{length} bytes at {at}");
        }
    }
}

//! Memory that operations read from and write to: the caller's, or another rank's.
//!
//! Raw pointers and no slices, because an operation in place reads and writes the same bytes.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;
use std::slice;

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

// SAFETY: the memory is not a thread's; who uses it when is settled by `new`'s contract.
unsafe impl Send for Source {}
// SAFETY: as for Send: a shared one says no more than a copy.
unsafe impl Sync for Source {}
// SAFETY: as for Source.
unsafe impl Send for Target {}
// SAFETY: as for Source.
unsafe impl Sync for Target {}

impl Source {
    /// # Safety
    ///
    /// `length` bytes at `start` can be read until the operation that takes this has ended, and while it reads
    /// a part of them nobody writes to that part.
    pub(crate) unsafe fn new(start: *const u8, length: usize) -> Self {
        Self { start, length }
    }

    pub(crate) fn start(self) -> *const u8 {
        self.start
    }

    /// The `length` bytes from `at` on, to be given up before the operation writes where they lie.
    pub(crate) fn bytes(&self, at: usize, length: usize) -> &[u8] {
        if length == 0 {
            return &[];
        }
        #[cfg(all(test, loom))]
        crate::interleavings::read(self.part(at, length), length);
        // SAFETY: `part` lies inside what `new`'s caller vouched for, and nobody writes there meanwhile.
        unsafe { slice::from_raw_parts(self.part(at, length), length) }
    }

    pub(crate) fn length(self) -> usize {
        self.length
    }

    /// A part of it.
    pub(crate) fn slice(self, part: Range<usize>) -> Self {
        Self { start: self.part(part.start, part.len()), length: part.len() }
    }

    /// Whether some of it lies where `target` does.
    pub(crate) fn overlaps(self, target: Target) -> bool {
        let (this, that) = (self.start.addr(), target.start.addr());
        this < that + target.length && that < this + self.length
    }

    /// Has the processor fetch it, for it is about to be read.
    pub(crate) fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        for at in (0..self.length).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

            // SAFETY: SSE is part of x86_64, and a prefetch only hints: it may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.start.wrapping_add(at).cast()) };
        }
    }

    /// Copies `bytes.len()` bytes from `at` on.
    pub(crate) fn read(self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.bytes(at, bytes.len()));
    }

    fn part(self, at: usize, length: usize) -> *const u8 {
        assert!(at <= self.length && length <= self.length - at, "read outside the caller's buffer");
        self.start.wrapping_add(at)
    }
}

impl Target {
    /// # Safety
    ///
    /// `length` bytes at `start` can be written until the operation that takes this has ended, and the part
    /// that it writes nobody else uses meanwhile.
    pub(crate) unsafe fn new(start: *mut u8, length: usize) -> Self {
        Self { start, length }
    }

    pub(crate) fn start(self) -> *mut u8 {
        self.start
    }

    pub(crate) fn length(self) -> usize {
        self.length
    }

    /// A part of it.
    pub(crate) fn slice(self, part: Range<usize>) -> Self {
        Self { start: self.part(part.start, part.len()), length: part.len() }
    }

    /// The same memory, to read what has been written.
    pub(crate) fn source(self) -> Source {
        Source { start: self.start, length: self.length }
    }

    /// Lets `write` write all of it, while nothing else does and nothing that it reads lies there.
    pub(crate) fn fill(self, write: impl FnOnce(&mut [u8])) {
        if self.length > 0 {
            #[cfg(all(test, loom))]
            crate::interleavings::write(self.start, self.length);
            // SAFETY: `new`'s caller vouched for the memory, and it is the operation's alone meanwhile.
            write(unsafe { slice::from_raw_parts_mut(self.start, self.length) });
        }
    }

    /// Copies all of `source`, which is as long and either elsewhere or the same memory, or does so
    /// `around_caches`.
    pub(crate) fn copy(self, source: Source, around_caches: bool) {
        if self.start.cast_const() != source.start {
            let bytes = source.bytes(0, source.length);
            if around_caches {
                self.write_around_caches(0, bytes);
                settle();
            } else {
                self.write(0, bytes);
            }
        }
    }

    /// Copies `bytes`, which is no part of this target, to `at`.
    pub(crate) fn write(self, at: usize, bytes: &[u8]) {
        let to = self.part(at, bytes.len());
        #[cfg(all(test, loom))]
        crate::interleavings::write(to, bytes.len());
        // SAFETY: `part` lies inside what `new`'s caller vouched for. A slice and a part that is written at the
        // same time do not overlap, by the contract of `new`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// The same for bytes that will not be read again soon: it does not fetch what it overwrites, nor does it
    /// push other data out of the caches. Before other ranks are told, it has to [`settle`].
    pub(crate) fn write_around_caches(self, at: usize, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

            let to = self.part(at, bytes.len());
            let head = to.align_offset(16).min(bytes.len());
            let (head, rest) = bytes.split_at(head);
            let (lines, tail) = rest.as_chunks::<16>();
            self.write(at, head);
            for (index, line) in lines.iter().enumerate() {
                // SAFETY: SSE2 is part of x86_64; the 16 bytes read are `line`, those written lie inside `part`
                // and are aligned, since `head` ends at a multiple of 16.
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

    fn part(self, at: usize, length: usize) -> *mut u8 {
        assert!(at <= self.length && length <= self.length - at, "write outside the caller's buffer");
        self.start.wrapping_add(at)
    }
}

/// Lets what was written around the caches come before the next announcement.
pub(crate) fn settle() {
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
    fn writing_around_the_caches_writes_the_same() {
        let bytes: Vec<u8> = (0..=255).collect();
        for (at, length) in [(0, 0), (3, 1), (1, 40), (16, 64), (7, 200)] {
            let mut memory = [0u8; 256];
            // SAFETY: the array is used through this only.
            let target = unsafe { Target::new(memory.as_mut_ptr(), memory.len()) };
            target.write_around_caches(at, &bytes[..length]);
            let mut expected = [0u8; 256];
            expected[at..at + length].copy_from_slice(&bytes[..length]);
            assert_eq!(memory, expected, "{length} bytes at {at}");
        }
    }
}

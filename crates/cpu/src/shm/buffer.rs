//! Memory that operations read and write: a user buffer, or another rank's memory.
//!
//! Uses raw pointers instead of slices because an in-place operation reads and writes the same bytes. Memory in a window, which
//! other ranks may write concurrently, is accessed as described in [`window_memory`].
#![allow(unsafe_code)]

use std::ops::Range;
use std::{ptr, slice};

use crate::shm::window_memory;
use crate::sync::primitive;

#[derive(Clone, Copy)]
pub(crate) struct ReadBuf {
    start: *const u8,
    /// The length in bytes, at most `isize::MAX` like every object size. The highest bit stores whether some of the bytes are in
    /// a window, so that a buffer has only two words and is passed in registers.
    extent: usize,
}

/// Memory to write. Also readable.
#[derive(Clone, Copy)]
pub(crate) struct WriteBuf(ReadBuf);

#[derive(Clone, Copy, Default)]
pub(crate) struct BufferRange {
    pub(crate) start: usize,
    pub(crate) length: usize,
}

const IN_WINDOW: usize = isize::MAX as usize + 1;

// SAFETY: the memory is not bound to a thread; concurrent access is ruled out by `new`'s contract.
unsafe impl Send for ReadBuf {}
// SAFETY: as for Send: a shared reference gives no more access than a copy.
unsafe impl Sync for ReadBuf {}

impl ReadBuf {
    /// # Safety
    /// `length` bytes at `start` must be readable until the operation that takes this buffer has ended, and no part of them may
    /// be written while the operation reads it, except [`in_window`](Self::in_window).
    pub(crate) unsafe fn new(start: *const u8, length: usize) -> Self {
        Self { start, extent: length & !IN_WINDOW }
    }

    /// Returns a caller's buffer of this process.
    ///
    /// # Safety
    /// As for [`new`](Self::new), but other ranks may concurrently write memory in a window of this process.
    pub(crate) unsafe fn of_caller(start: *const u8, length: usize) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::new(start, length) }.in_window(window_memory::overlaps(start, length))
    }

    /// Returns the same memory. If `in_window` is set, other ranks may write it concurrently through a window.
    #[inline]
    pub(crate) fn in_window(self, in_window: bool) -> Self {
        Self { extent: self.length() | if in_window { IN_WINDOW } else { 0 }, ..self }
    }

    pub(crate) fn start(self) -> *const u8 {
        self.start
    }

    /// Returns the `length` bytes starting at `at`. Window memory is returned as a copy, in `copy`. The slice must be dropped
    /// before the operation writes there.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, at: usize, length: usize, copy: &'a mut Vec<u8>) -> &'a [u8] {
        if length == 0 {
            return &[];
        }
        if self.is_in_window() {
            return self.copied(at, length, copy);
        }
        primitive::note_read(self.address(at, length), length);
        // SAFETY: inside the range that the caller of `new` guaranteed, and the caller also guarantees that it is not written
        // concurrently.
        unsafe { slice::from_raw_parts(self.address(at, length), length) }
    }

    #[cold]
    fn copied(self, at: usize, length: usize, copy: &mut Vec<u8>) -> &[u8] {
        copy.resize(length, 0);
        self.read(at, copy);
        copy
    }

    #[inline]
    pub(crate) fn length(self) -> usize {
        self.extent & !IN_WINDOW
    }

    pub(crate) fn range(self) -> BufferRange {
        BufferRange { start: self.start.addr(), length: self.length() }
    }

    #[inline]
    pub(super) fn is_in_window(self) -> bool {
        self.extent & IN_WINDOW != 0
    }

    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        let extent = range.len() | self.extent & IN_WINDOW;
        Self { start: self.address(range.start, range.len()), extent }
    }

    pub(crate) fn overlaps(self, other: WriteBuf) -> bool {
        let (this, that) = (self.start.addr(), other.start().addr());
        this < that + other.length() && that < this + self.length()
    }

    pub(crate) fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        for at in (0..self.length()).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

            // SAFETY: SSE is part of x86_64, and a prefetch is a hint: any address is valid.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.start.wrapping_add(at).cast()) };
        }
    }

    /// Copies `bytes.len()` bytes starting at `at` into `bytes`.
    pub(crate) fn read(self, at: usize, bytes: &mut [u8]) {
        let from = self.address(at, bytes.len());
        primitive::note_read(from, bytes.len());
        if self.is_in_window() {
            // SAFETY: inside the range that the caller of `new` guaranteed; window memory is only written as such.
            unsafe { window_memory::read(from, bytes) }
        } else {
            // SAFETY: as above; it is not written concurrently, and a mutable slice does not overlap other memory.
            unsafe { copy(from, bytes.as_mut_ptr(), bytes.len()) }
        }
    }

    /// Calls `run` with a copy of the memory. The copy lives until `run` has ended, and is not written.
    pub(crate) async fn with_copy<T>(self, run: impl AsyncFnOnce(Self) -> T) -> T {
        let mut copy = vec![0; self.length()];
        self.read(0, &mut copy);
        // SAFETY: the copy lives and is not written until `run` has ended; by the contract of `run`, an operation that takes it
        // ends within `run`.
        run(unsafe { Self::new(copy.as_ptr(), copy.len()) }).await
    }

    fn address(self, at: usize, length: usize) -> *const u8 {
        assert!(at <= self.length() && length <= self.length() - at, "access outside the caller's buffer");
        self.start.wrapping_add(at)
    }
}

impl WriteBuf {
    /// # Safety
    /// `length` bytes at `start` must be writable until the operation that takes this buffer has ended, and nothing else may
    /// access a part of them while the operation writes it, except [`in_window`](Self::in_window).
    pub(crate) unsafe fn new(start: *mut u8, length: usize) -> Self {
        // SAFETY: the caller's contract.
        Self(unsafe { ReadBuf::new(start, length) })
    }

    /// Returns a caller's buffer of this process.
    ///
    /// # Safety
    /// As for [`new`](Self::new), but other ranks may concurrently access memory in a window of this process.
    pub(crate) unsafe fn of_caller(start: *mut u8, length: usize) -> Self {
        // SAFETY: the caller's contract.
        Self(unsafe { ReadBuf::of_caller(start, length) })
    }

    /// Returns the same memory. If `in_window` is set, other ranks may access it concurrently through a window.
    pub(crate) fn in_window(self, in_window: bool) -> Self {
        Self(self.0.in_window(in_window))
    }

    pub(crate) fn start(self) -> *mut u8 {
        self.0.start.cast_mut()
    }

    pub(crate) fn length(self) -> usize {
        self.0.length()
    }

    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        Self(self.0.slice(range))
    }

    pub(crate) fn as_read(self) -> ReadBuf {
        self.0
    }

    /// Fills the memory using `write`, which must not read the memory.
    pub(crate) fn fill(self, write: impl FnOnce(&mut [u8])) {
        if self.0.is_in_window() {
            let mut bytes = vec![0; self.length()];
            write(&mut bytes);
            self.write(0, &bytes);
        } else if self.length() > 0 {
            primitive::note_write(self.start(), self.length());
            // SAFETY: the caller of `new` guaranteed the memory, and that only the operation accesses it at this time.
            write(unsafe { slice::from_raw_parts_mut(self.start(), self.length()) });
        }
    }

    /// Copies all of `from`, which must have the same length and must either be the same memory or not overlap it.
    pub(crate) fn copy(self, from: ReadBuf, nontemporal: bool) {
        if self.0.start == from.start {
            return;
        }
        if from.is_in_window() {
            self.copy_of_window(from);
        } else {
            let mut none = vec![];
            let bytes = from.bytes(0, from.length(), &mut none);
            if nontemporal {
                self.write_nontemporal(0, bytes);
                store_fence();
            } else {
                self.write(0, bytes);
            }
        }
    }

    fn copy_of_window(self, from: ReadBuf) {
        if !self.0.is_in_window() {
            return self.fill(|bytes| from.read(0, bytes));
        }
        let (from, to) = (from.address(0, from.length()), self.address(0, from.length()));
        primitive::note_read(from, self.length());
        primitive::note_write(to, self.length());
        // SAFETY: inside the ranges that the callers of `new` guaranteed; window memory is only accessed as such.
        unsafe { window_memory::copy(from, to, self.length()) }
    }

    /// Copies `bytes`, which must not overlap this memory, to `at`.
    pub(crate) fn write(self, at: usize, bytes: &[u8]) {
        let to = self.address(at, bytes.len());
        primitive::note_write(to, bytes.len());
        if self.0.is_in_window() {
            // SAFETY: inside the range that the caller of `new` guaranteed; window memory is only accessed as such.
            unsafe { window_memory::write(to, bytes) }
        } else {
            // SAFETY: as above. By the contract of `new`, a slice and memory that is written at the same time do not overlap.
            unsafe { copy(bytes.as_ptr(), to, bytes.len()) }
        }
    }

    /// Copies `bytes` with non-temporal stores, for data that will not be read again soon: they neither fetch the cache lines
    /// that they overwrite nor evict others. Call [`store_fence`] before notifying other ranks.
    pub(crate) fn write_nontemporal(self, at: usize, bytes: &[u8]) {
        if self.0.is_in_window() {
            return self.write(at, bytes);
        }
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

            let to = self.address(at, bytes.len());
            let head = to.align_offset(16).min(bytes.len());
            let (head, rest) = bytes.split_at(head);
            let (lines, tail) = rest.as_chunks::<16>();
            self.write(at, head);
            for (index, line) in lines.iter().enumerate() {
                // SAFETY: SSE2 is part of x86_64. The 16 bytes read are `line`; the 16 bytes written are inside this memory and
                // aligned, because `head` ends at a multiple of 16.
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
        self.0.address(at, length).cast_mut()
    }
}

/// Copies bytes, in pieces where `memcpy` would be slow: glibc uses REP MOVSB for 2112 bytes and more. On AMD's Zen 3, this takes
/// twenty times as long if the target is 1 to 31 bytes further into its page than the source (`docs/cpu-performance.md`).
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    const PAGE: usize = 4096;
    const PIECE: usize = 2048;
    let ahead = to.addr().wrapping_sub(from.addr()) % PAGE;
    if length <= PIECE || !(1..32).contains(&ahead) || cfg!(not(target_arch = "x86_64")) {
        // SAFETY: the caller's contract.
        return unsafe { ptr::copy_nonoverlapping(from, to, length) };
    }
    for at in (0..length).step_by(PIECE) {
        // SAFETY: as above, for a part of the range.
        unsafe { ptr::copy_nonoverlapping(from.add(at), to.add(at), PIECE.min(length - at)) };
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
    use crate::shm::window_memory::WindowMemory;

    #[test]
    fn nontemporal_write_writes_every_byte() {
        let bytes: Vec<u8> = (0..=255).collect();
        for (at, length) in [(0, 0), (3, 1), (1, 40), (16, 64), (7, 200)] {
            let mut memory = [0u8; 256];
            // SAFETY: the array is only accessed through this buffer.
            let buffer = unsafe { WriteBuf::new(memory.as_mut_ptr(), memory.len()) };
            buffer.write_nontemporal(at, &bytes[..length]);
            let mut expected = [0u8; 256];
            expected[at..at + length].copy_from_slice(&bytes[..length]);
            assert_eq!(memory, expected, "{length} bytes at {at}");
        }
    }

    #[test]
    fn bytes_are_copied_whole_at_any_distance_within_a_page() {
        const LENGTHS: [usize; 6] = [1, 2048, 2049, 4096, 4097, 10_000];
        let source: Vec<u8> = (0..10_000).map(|index| (index % 251) as u8).collect();
        for length in LENGTHS {
            for distance in 0..40 {
                let mut memory = vec![0; 4096 + 40 + length];
                let aligned =
                    memory.as_ptr().addr().wrapping_sub(source.as_ptr().addr()).wrapping_neg() % 4096;
                let at = (aligned + distance) % 4096;
                // SAFETY: the vector is only accessed through this buffer.
                let buffer = unsafe { WriteBuf::new(memory.as_mut_ptr(), memory.len()) };
                buffer.write(at, &source[..length]);
                let mut read = vec![1; length];
                buffer.as_read().read(at, &mut read);
                assert!(read == source[..length], "{length} bytes, distance {distance}");
                let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
                assert!(memory[at..at + length] == source[..length], "{length} bytes, distance {distance}");
                assert!(is_zero(&memory[..at]) && is_zero(&memory[at + length..]), "{length}, {distance}");
            }
        }
    }

    #[test]
    fn no_slice_of_window_memory_is_formed() {
        let mut memory = [0_u64; 8];
        let start: *mut u8 = memory.as_mut_ptr().cast();
        let is_inside = |bytes: &[u8]| (start.addr()..start.addr() + 64).contains(&bytes.as_ptr().addr());
        let check = |is_window: bool| {
            // SAFETY: the array is only accessed through these buffers.
            let (from, to) = unsafe { (ReadBuf::of_caller(start, 64), WriteBuf::of_caller(start, 64)) };
            for from in [from, to.as_read(), from.slice(3..64), to.slice(3..64).as_read()] {
                assert_eq!(is_inside(from.bytes(0, 13, &mut vec![])), !is_window);
            }
            to.slice(1..9).fill(|bytes| {
                assert_eq!(is_inside(bytes), !is_window);
                bytes.fill(8);
            });
            let expected = [0, 8, 8, 8, 8, 8, 8, 8, 8, 0];
            assert_eq!(from.bytes(0, 10, &mut vec![]), expected);
            to.write(0, &[0; 64]);
        };
        check(false);
        let window = WindowMemory::new(start, 64);
        check(true);
        drop(window);
        check(false);
    }
}

//! This process's window memory, which other ranks may write at any time.
//!
//! A put is ordered only with its signal. A concurrent access to the same bytes must not be an ordinary memory access, because
//! the compiler assumes that ordinary memory does not change concurrently. Therefore, all accesses to window memory, by puts and
//! by any other operation, are relaxed atomic accesses of whole, aligned words. A reader that runs concurrently with a put
//! observes an arbitrary mixture of old and new words, and nothing worse. No slice of window memory is formed.
//!
//! Memory outside windows is accessed normally. A single load shows whether this process has any windows.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

const WORD: usize = size_of::<u64>();

/// The number of ranges. Lets [`overlaps`] avoid the lock if there are none.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The address ranges of windows. A range that is in several windows is listed several times.
static RANGES: RwLock<Vec<Range<usize>>> = RwLock::new(Vec::new());

/// RAII guard that lists a range as window memory.
pub(crate) struct WindowMemory(Range<usize>);

impl WindowMemory {
    /// Lists `length` bytes at `start`. All later operations on the memory treat it as window memory.
    pub(crate) fn new(start: *const u8, length: usize) -> Self {
        let range = start.addr()..start.addr().saturating_add(length);
        let mut ranges = ranges();
        ranges.push(range.clone());
        COUNT.store(ranges.len() as u64, Relaxed);
        Self(range)
    }
}

impl Drop for WindowMemory {
    fn drop(&mut self) {
        let mut ranges = ranges();
        if let Some(index) = ranges.iter().position(|range| *range == self.0) {
            ranges.swap_remove(index);
        }
        COUNT.store(ranges.len() as u64, Relaxed);
    }
}

fn ranges() -> RwLockWriteGuard<'static, Vec<Range<usize>>> {
    RANGES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns `true` if some of the `length` bytes at `start` are in a window.
#[inline]
pub(super) fn overlaps(start: *const u8, length: usize) -> bool {
    COUNT.load(Relaxed) != 0 && count(start, length) > 0
}

/// Returns the number of windows that contain some of the `length` bytes at `start`.
#[cold]
pub(super) fn count(start: *const u8, length: usize) -> usize {
    let ranges = RANGES.read().unwrap_or_else(PoisonError::into_inner);
    let end = start.addr().saturating_add(length);
    ranges.iter().filter(|range| start.addr() < range.end && range.start < end).count()
}

/// Copies from `from`, in window memory, to `to`.
///
/// # Safety
/// `to.len()` bytes at `from` must be readable, and may only be written concurrently by [`write()`] or [`copy`].
#[inline(never)]
pub(super) unsafe fn read(from: *const u8, to: &mut [u8]) {
    let head = from.align_offset(WORD).min(to.len());
    let (before, rest) = to.split_at_mut(head);
    let (words, after) = rest.as_chunks_mut::<WORD>();
    let partial = |from: *const u8, to: &mut [u8]| {
        let offset = from.addr() % WORD;
        if !to.is_empty() {
            // SAFETY: some of the word's bytes are in the range, and memory is mapped in whole words.
            let word = unsafe { word(from.wrapping_sub(offset)) }.load(Relaxed).to_ne_bytes();
            to.copy_from_slice(&word[offset..offset + to.len()]);
        }
    };
    partial(from, before);
    let mut at = from.wrapping_add(head);
    for to in words {
        // SAFETY: inside the range that the caller guarantees, and aligned, because `head` ends at a multiple of a word.
        *to = unsafe { word(at) }.load(Relaxed).to_ne_bytes();
        at = at.wrapping_add(WORD);
    }
    partial(at, after);
}

/// Copies `from` to `to`, in window memory.
///
/// # Safety
/// `from.len()` bytes at `to` must be writable, and may only be accessed concurrently by [`read`], [`write()`] or [`copy`].
#[inline(never)]
pub(super) unsafe fn write(to: *mut u8, from: &[u8]) {
    let head = to.align_offset(WORD).min(from.len());
    let (before, rest) = from.split_at(head);
    let (words, after) = rest.as_chunks::<WORD>();
    let partial = |to: *mut u8, from: &[u8]| {
        let offset = to.addr() % WORD;
        if from.is_empty() {
            return;
        }
        // SAFETY: as in `read`. The word's other bytes are preserved, even if they are written concurrently.
        let word = unsafe { word(to.wrapping_sub(offset)) };
        let _ = word.fetch_update(Relaxed, Relaxed, |before| {
            let mut bytes = before.to_ne_bytes();
            bytes[offset..offset + from.len()].copy_from_slice(from);
            Some(u64::from_ne_bytes(bytes))
        });
    };
    partial(to, before);
    let mut at = to.wrapping_add(head);
    for from in words {
        // SAFETY: as in `read`.
        unsafe { word(at) }.store(u64::from_ne_bytes(*from), Relaxed);
        at = at.wrapping_add(WORD);
    }
    partial(at, after);
}

/// Copies `length` bytes from `from` to `to`, which are both in window memory and do not overlap.
///
/// # Safety
/// As for [`read`] and [`write()`].
#[inline(never)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    const BLOCK: usize = 1 << 10;
    let is_aligned = from.addr().is_multiple_of(WORD) && to.addr().is_multiple_of(WORD);
    let whole = if is_aligned { length / WORD * WORD } else { 0 };
    for at in (0..whole).step_by(WORD) {
        // SAFETY: inside the range that the caller guarantees, and aligned.
        unsafe { word(to.wrapping_add(at)).store(word(from.wrapping_add(at)).load(Relaxed), Relaxed) };
    }
    let mut block = [0; BLOCK];
    for at in (whole..length).step_by(BLOCK) {
        let block = &mut block[..BLOCK.min(length - at)];
        // SAFETY: inside the range that the caller guarantees.
        unsafe {
            read(from.wrapping_add(at), block);
            write(to.wrapping_add(at), block);
        }
    }
}

/// Returns the word at `start`.
///
/// # Safety
/// The word must be aligned, and mapped as long as it is used. Concurrent accesses to it must be atomic and of the same size.
#[inline(always)]
unsafe fn word<'a>(start: *const u8) -> &'a AtomicU64 {
    // SAFETY: the caller's contract.
    unsafe { AtomicU64::from_ptr(start.cast_mut().cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_memory_of_any_alignment_is_read_and_written_exactly() {
        let pattern: Vec<u8> = (1..=64).collect();
        for (start, length) in [(0, 0), (0, 8), (3, 1), (3, 4), (5, 3), (7, 2), (1, 40), (8, 16), (6, 33)] {
            let mut memory = [0_u64; 10];
            let bytes: *mut u8 = memory.as_mut_ptr().cast();
            let (mut read_back, mut copied) = ([0; 64], [0_u64; 10]);
            let target: *mut u8 = copied.as_mut_ptr().cast();
            for shift in [0, 1, 8] {
                // SAFETY: inside the two arrays, which only this test uses.
                unsafe {
                    write(bytes.add(start), &pattern[..length]);
                    read(bytes.add(start), &mut read_back[..length]);
                    copy(bytes.add(start), target.add(start + shift), length);
                    let copied = std::slice::from_raw_parts(target.add(start + shift), length);
                    assert_eq!(copied, &pattern[..length], "{length} bytes at {start}, to {shift} more");
                }
                assert_eq!(read_back[..length], pattern[..length], "{length} bytes at {start}");
            }
            let written: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let outside = written[..start].iter().chain(&written[start + length..]);
            assert!(outside.copied().all(|byte| byte == 0), "{length} bytes at {start}");
        }
    }

    #[test]
    fn window_memory_is_listed_while_it_is_in_a_window() {
        let memory = [0_u8; 100];
        let at = |offset| memory.as_ptr().wrapping_add(offset);
        let first = WindowMemory::new(at(10), 50);
        let second = WindowMemory::new(at(10), 50);
        assert!(overlaps(at(0), 11) && overlaps(at(59), 1) && overlaps(at(0), 100) && overlaps(at(20), 1));
        assert!(!overlaps(at(0), 10) && !overlaps(at(60), 40));
        drop(first);
        assert!(overlaps(at(20), 1), "another window has it");
        drop(second);
        assert!(!overlaps(at(0), 100));
    }
}

//! The memory shared by the ranks of a communicator: atomic words, followed by plain bytes.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

use crate::diag::debug::{self, Subsystem};
use crate::diag::error::Result;
use crate::shm::buffer::WriteBuf;
use crate::shm::mapping::Mapping;
use crate::sync::primitive::{self, AtomicU64, AtomicWords};

const WORD: usize = size_of::<u64>();

#[derive(Debug)]
pub(crate) struct Segment {
    // Dropped before the mapping that contains the words.
    atomics: AtomicWords,
    mapping: Mapping,
    words: usize,
    bytes: usize,
}

// SAFETY: the mapping is not bound to a thread. Words are atomic, and access to the bytes is synchronized between ranks, which
// may be threads, through the words.
unsafe impl Send for Segment {}
// SAFETY: as for Send.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates a zeroed segment and the file through which other processes map it.
    pub(crate) fn create(words: usize, bytes: usize) -> Result<(Self, OwnedFd)> {
        let (mapping, file) = Mapping::shared(words * WORD + bytes)?;
        Ok((Self::new(mapping, words, bytes), file))
    }

    /// Opens the segment that another rank created with the same arguments.
    pub(crate) fn open(file: impl AsFd, words: usize, bytes: usize) -> Result<Self> {
        Ok(Self::new(Mapping::received(file, words * WORD + bytes)?, words, bytes))
    }

    fn new(mapping: Mapping, words: usize, bytes: usize) -> Self {
        primitive::track(mapping.start().as_ptr(), mapping.length());
        // SAFETY: a mapping starts at a page and is unmapped after this value is dropped. Its first `words` words are accessed
        // through this value only, except the words of `word_memory`, which are not used as words.
        let atomics = unsafe { AtomicWords::new(mapping.start(), words) };
        Self { atomics, mapping, words, bytes }
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        let [word] = self.words(index);
        word
    }

    pub(crate) fn words<const N: usize>(&self, start: usize) -> &[AtomicU64; N] {
        assert!(N <= self.words && start <= self.words - N, "{N} words from {start} on of {}", self.words);
        // SAFETY: inside the words, as checked above.
        unsafe { self.atomics.get(start) }
    }

    /// Returns the `length` bytes at `at`.
    pub(crate) fn memory(&self, at: usize, length: usize) -> WriteBuf {
        let start = self.address(at, length);
        // SAFETY: inside the mapping, which lives until every operation on it has ended, because operations borrow it. A rank
        // that follows the protocol of the words accesses no bytes that another rank is writing. A rank that violates the
        // protocol can corrupt the bytes, but they are only data.
        unsafe { WriteBuf::new(start, length) }
    }

    /// Returns the memory of the words starting at `word` as `length` bytes. These words must not be used as words.
    pub(crate) fn word_memory(&self, word: usize, length: usize) -> WriteBuf {
        let end = word + length.div_ceil(WORD);
        assert!(end <= self.words, "words {word}..{end} of {}", self.words);
        let start = self.mapping.start().as_ptr().wrapping_add(word * WORD);
        // SAFETY: as in `memory`.
        unsafe { WriteBuf::new(start, length) }
    }

    /// Releases the whole pages among the `length` bytes at `at` to the kernel, after which they are zero. If the kernel refuses,
    /// the pages are unchanged.
    pub(crate) fn release(&self, at: usize, length: usize) {
        let page = page_size();
        let start = self.address(at, length);
        let skipped = start.addr().next_multiple_of(page) - start.addr();
        let whole = length.saturating_sub(skipped) / page * page;
        if whole == 0 {
            return;
        }
        // SAFETY: whole pages inside the mapping, which no rank that follows the protocol is using.
        let released = unsafe { madvise(start.wrapping_add(skipped).cast(), whole, Advice::LinuxRemove) };
        if let Err(error) = released {
            debug::info(Subsystem::SharedMemory, || {
                format!("{whole} bytes of shared memory cannot be released: {error}")
            });
        }
    }

    /// Returns how many of the `length` bytes at `at` are resident in this process, in whole pages, or `length` if the kernel
    /// does not report it.
    pub(crate) fn resident(&self, at: usize, length: usize) -> usize {
        const PRESENT: u64 = 1 << 63;
        let page = page_size();
        let start = self.address(at, length).addr();
        let (first, end) = (start.div_ceil(page), (start + length) / page);
        let mut entries = vec![0; end.saturating_sub(first) * WORD];
        let read = File::open("/proc/thread-self/pagemap")
            .and_then(|file| file.read_exact_at(&mut entries, (first * WORD) as u64));
        if read.is_err() {
            return length;
        }
        let (entries, _) = entries.as_chunks();
        page * entries.iter().filter(|entry| u64::from_ne_bytes(**entry) & PRESENT != 0).count()
    }

    fn address(&self, at: usize, length: usize) -> *mut u8 {
        assert!(at <= self.bytes && length <= self.bytes - at, "bytes {at}+{length} of {}", self.bytes);
        self.mapping.start().as_ptr().wrapping_add(self.words * WORD + at)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        primitive::untrack(self.mapping.start().as_ptr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_are_not_resident_and_read_as_zero() {
        let page = page_size();
        let length = 8 * page;
        let (segment, _) = Segment::create(3, length).unwrap();
        assert_eq!(segment.resident(0, length), 0);
        segment.memory(0, length).write(0, &vec![7; length]);
        // The bytes begin after three words, so the first and last pages are partial.
        assert_eq!(segment.resident(0, length), 7 * page);
        segment.release(page, 3 * page);
        assert_eq!(segment.resident(0, length), 5 * page);
        let mut bytes = vec![0; length];
        segment.memory(0, length).as_read().read(0, &mut bytes);
        let zero = bytes.iter().filter(|byte| **byte == 0).count();
        assert_eq!((bytes[page], bytes[4 * page - 1], zero), (7, 7, 2 * page), "only whole pages");
        segment.release(1, page);
        segment.release(0, 0);
    }

    #[test]
    #[should_panic(expected = "bytes 91+10 of 100")]
    fn memory_outside_the_segment_panics() {
        Segment::create(3, 100).unwrap().0.memory(91, 10);
    }
}

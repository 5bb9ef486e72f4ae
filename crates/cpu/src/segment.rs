//! The memory that the ranks of a communicator share: words, used atomically, and after them plain bytes.
//!
//! It is anonymous, so nothing is left behind however a process ends, and its size is sealed, so no rank can
//! take the memory away under another.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::param::page_size;

use crate::buffer::{Source, Target};
use crate::debug::{self, Subsystem};
use crate::failure::{Failure, Result};

/// Where all interleavings are tried, Loom has the words, and only the bytes are in the mapping.
#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU64, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, fence};

/// Whether all interleavings are tried, which takes little memory and short calls.
pub(crate) const TINY: bool = cfg!(all(test, loom));

const WORD: usize = size_of::<u64>();

#[derive(Debug)]
pub(crate) struct Segment {
    start: NonNull<u8>,
    words: usize,
    bytes: usize,
    #[cfg(all(test, loom))]
    loom: Vec<AtomicU64>,
}

// SAFETY: the mapping belongs to no thread; words are atomic, and who may touch which bytes when is settled
// between ranks, which may be threads, by counters in the words.
unsafe impl Send for Segment {}
// SAFETY: as for Send.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new segment, all zero, and the file through which others map it.
    pub(crate) fn create(words: usize, bytes: usize) -> Result<(Self, OwnedFd)> {
        let failed = |error| Failure::system("shared memory cannot be created", error);
        let file =
            memfd_create("libnccl-cpu", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
        ftruncate(&file, (words * WORD + bytes) as u64).map_err(failed)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(failed)?;
        Ok((Self::map(&file, words, bytes)?, file))
    }

    /// The segment that another rank created with the same arguments.
    pub(crate) fn open(file: impl AsFd, words: usize, bytes: usize) -> Result<Self> {
        let failed = |error| Failure::system("shared memory cannot be examined", error);
        let size = fstat(&file).map_err(failed)?.st_size;
        let sealed = fcntl_get_seals(&file).map_err(failed)?.contains(SealFlags::SHRINK);
        if size as usize != words * WORD + bytes || !sealed {
            return Err(Failure::remote(format!(
                "what another rank sent as shared memory is not that: {size} bytes"
            )));
        }
        Self::map(file, words, bytes)
    }

    fn map(file: impl AsFd, words: usize, bytes: usize) -> Result<Self> {
        let length = words * WORD + bytes;
        // SAFETY: the kernel chooses a place where nothing is mapped, and the file cannot shrink.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                0,
            )
        }
        .map_err(|error| {
            Failure::system(&format!("{length} bytes of shared memory cannot be mapped"), error)
        })?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Failure::internal("mapped at address zero"))?;
        let segment = Self {
            start,
            words,
            bytes,
            #[cfg(all(test, loom))]
            loom: (0..words).map(|_| AtomicU64::new(0)).collect(),
        };
        #[cfg(all(test, loom))]
        crate::interleavings::begin(segment.start.as_ptr(), length);
        Ok(segment)
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        let [word] = self.words(index);
        word
    }

    /// The words from `start` on.
    pub(crate) fn words<const N: usize>(&self, start: usize) -> &[AtomicU64; N] {
        assert!(N <= self.words && start <= self.words - N, "{N} words from {start} on of {}", self.words);
        #[cfg(all(test, loom))]
        return self.loom[start..].first_chunk().unwrap();
        #[cfg(not(all(test, loom)))]
        // SAFETY: inside the mapping, which starts at a page and lives as long as `self`; words are
        // touched through this function only; those that `memory_of_words` gives out are not used as words.
        unsafe {
            self.start.cast::<AtomicU64>().add(start).cast().as_ref()
        }
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        self.memory(at, bytes.len()).1.write(0, bytes);
    }

    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) {
        self.memory(at, bytes.len()).0.read(0, bytes);
    }

    /// The `length` bytes from `at` on, to read and to write.
    pub(crate) fn memory(&self, at: usize, length: usize) -> (Source, Target) {
        let start = self.place(at, length);
        // SAFETY: inside the mapping, which lives until every operation on it has ended, for they borrow it. No
        // rank that keeps to the counters uses bytes that another one writes; one that does not can garble
        // them, which are only data.
        unsafe { (Source::new(start, length), Target::new(start, length)) }
    }

    /// The same for `length` bytes that lie where the words from `word` on do, which nobody uses as words.
    pub(crate) fn memory_of_words(&self, word: usize, length: usize) -> (Source, Target) {
        let end = word + length.div_ceil(WORD);
        assert!(end <= self.words, "words {word}..{end} of {}", self.words);
        let start = self.start.as_ptr().wrapping_add(word * WORD);
        // SAFETY: as in `memory`.
        unsafe { (Source::new(start, length), Target::new(start, length)) }
    }

    /// Gives back the whole pages among the `length` bytes from `at` on, which are then zero. If the kernel
    /// cannot, they stay.
    pub(crate) fn release(&self, at: usize, length: usize) {
        let page = page_size();
        let start = self.place(at, length);
        let skipped = start.addr().next_multiple_of(page) - start.addr();
        let whole = length.saturating_sub(skipped) / page * page;
        if whole == 0 {
            return;
        }
        // SAFETY: whole pages inside the mapping. Who keeps to the counters does not use them now.
        let released = unsafe { madvise(start.wrapping_add(skipped).cast(), whole, Advice::LinuxRemove) };
        if let Err(error) = released {
            debug::info(Subsystem::SharedMemory, || {
                format!("{whole} bytes of shared memory cannot be given back: {error}")
            });
        }
    }

    /// How many of the `length` bytes from `at` on this process has used so far, in whole pages: as many as take
    /// memory if nobody else uses them. All, if the kernel does not say.
    pub(crate) fn resident(&self, at: usize, length: usize) -> usize {
        const PRESENT: u64 = 1 << 63;
        let page = page_size();
        let start = self.place(at, length).addr();
        let (first, end) = (start.div_ceil(page), (start + length) / page);
        let mut entries = vec![0; end.saturating_sub(first) * WORD];
        let read = File::open("/proc/self/pagemap")
            .and_then(|file| file.read_exact_at(&mut entries, (first * WORD) as u64));
        if read.is_err() {
            return length;
        }
        let (entries, _) = entries.as_chunks();
        page * entries.iter().filter(|entry| u64::from_ne_bytes(**entry) & PRESENT != 0).count()
    }

    fn place(&self, at: usize, length: usize) -> *mut u8 {
        assert!(at <= self.bytes && length <= self.bytes - at, "bytes {at}+{length} of {}", self.bytes);
        self.start.as_ptr().wrapping_add(self.words * WORD + at)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        #[cfg(all(test, loom))]
        crate::interleavings::end(self.start.as_ptr());
        // SAFETY: the mapping is ours alone, and no reference into it outlives `self`.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.words * WORD + self.bytes) };
        debug_assert!(result.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_of_one_segment_see_each_other() {
        let (one, file) = Segment::create(3, 100).unwrap();
        let two = Segment::open(&file, 3, 100).unwrap();
        one.word(2).store(7, Relaxed);
        one.write(90, b"0123456789");
        let mut bytes = [0; 10];
        two.read(90, &mut bytes);
        assert_eq!((two.word(2).load(Relaxed), &bytes), (7, b"0123456789"));
    }

    #[test]
    fn what_is_released_takes_no_memory_and_is_zero() {
        let page = page_size();
        let length = 8 * page;
        let (segment, _) = Segment::create(3, length).unwrap();
        assert_eq!(segment.resident(0, length), 0);
        segment.write(0, &vec![7; length]);
        // The bytes begin after three words, so the first and the last page are not whole ones.
        assert_eq!(segment.resident(0, length), 7 * page);
        segment.release(page, 3 * page);
        assert_eq!(segment.resident(0, length), 5 * page);
        let mut bytes = vec![0; length];
        segment.read(0, &mut bytes);
        let zero = bytes.iter().filter(|byte| **byte == 0).count();
        assert_eq!((bytes[page], bytes[4 * page - 1], zero), (7, 7, 2 * page), "only whole pages");
        segment.release(1, page);
        segment.release(0, 0);
    }

    #[test]
    fn another_size_is_refused() {
        let (_, file) = Segment::create(3, 100).unwrap();
        assert!(Segment::open(&file, 3, 101).is_err());
        assert!(ftruncate(&file, 0).is_err(), "sealed");
    }

    #[test]
    #[should_panic(expected = "bytes 91+10 of 100")]
    fn bytes_outside_are_refused() {
        Segment::create(3, 100).unwrap().0.write(91, b"0123456789");
    }
}

//! Invalid buffers: the report of a buffer that an operation cannot read or write.
//!
//! Operations use the caller's buffers without a check, which would cost a system call each time. An unmapped or read-only buffer
//! therefore causes a memory fault. The [handler](fault_signal) searches for the fault address in the buffers of the running
//! operations. The operations are in a list of atomics that lives as long as the process.

use std::ffi::c_int;
use std::iter;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use cuda_common::fault_signal;
use cuda_common::finding::{self, Finding};

use crate::coll::call::CallHeader;
use crate::diag::{debug, report};
use crate::shm::buffer::BufferRange;
use crate::shm::mapping::is_own_byte_readable;

/// A running operation: its call, and the locations and lengths of its buffers.
struct Entry {
    call: [AtomicU64; 2],
    starts: [AtomicUsize; 2],
    lengths: [AtomicUsize; 2],
}

impl Entry {
    const fn free() -> Self {
        Self {
            call: [const { AtomicU64::new(0) }; 2],
            starts: [const { AtomicUsize::new(0) }; 2],
            lengths: [const { AtomicUsize::new(0) }; 2],
        }
    }

    #[inline]
    fn begin(&self, call: [u64; 2], buffers: [BufferRange; 2]) {
        for (index, BufferRange { start, length }) in buffers.into_iter().enumerate() {
            self.call[index].store(call[index], Relaxed);
            self.starts[index].store(start, Relaxed);
            self.lengths[index].store(length, Release);
        }
    }

    #[inline]
    fn end(&self) {
        self.lengths.iter().for_each(|length| length.store(0, Relaxed));
    }

    /// Returns the index of the buffer that contains the address, and the offset in the buffer.
    fn find(&self, address: usize, is_outside: bool) -> Option<(usize, usize)> {
        for index in [0, 1] {
            let length = self.lengths[index].load(Acquire);
            let start = self.starts[index].load(Relaxed);
            let offset =
                if is_outside && start >> ADDRESS_BITS != 0 { 0 } else { address.wrapping_sub(start) };
            if start != 0 && offset < length {
                return Some((index, offset));
            }
        }
        None
    }
}

/// Number of bits of an address in user space. On x86-64, a fault at any other address is reported without the address.
const ADDRESS_BITS: u32 = 47;

/// The operations of one rank, and a link to those of the next rank.
struct Rank {
    is_used: AtomicBool,
    rank: AtomicUsize,
    operations: Chunk,
    next: OnceLock<Box<Rank>>,
}

/// A chunk of entries, and a link to the next chunk. A call outside groups uses the first entry.
struct Chunk {
    entries: [Entry; 16],
    next: OnceLock<Box<Chunk>>,
}

impl Chunk {
    const fn free() -> Self {
        Self { entries: [const { Entry::free() }; 16], next: OnceLock::new() }
    }
}

impl Rank {
    const fn free() -> Self {
        Self {
            is_used: AtomicBool::new(false),
            rank: AtomicUsize::new(0),
            operations: Chunk::free(),
            next: OnceLock::new(),
        }
    }
}

static RANKS: Rank = Rank::free();

/// The running operations of a communicator's rank. They are listed until this is dropped.
pub(crate) struct Running(&'static Rank);

impl Default for Running {
    fn default() -> Self {
        static INSTALL: OnceLock<()> = OnceLock::new();
        INSTALL.get_or_init(|| {
            if report::is_ignored(Finding::InvalidBuffer) {
                return;
            }
            if let Err(error) = fault_signal::install(say) {
                debug::warn_on_stderr(&format!("invalid buffers are not reported: {error}"));
            }
        });
        let mut rank = &RANKS;
        while rank.is_used.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            rank = rank.next.get_or_init(|| Box::new(Rank::free()));
        }
        Self(rank)
    }
}

impl Running {
    pub(crate) fn set_rank(&self, rank: usize) {
        self.0.rank.store(rank, Relaxed);
    }

    /// Records that the operation at `index` of a group has begun. For a call outside groups, `index` is 0.
    #[inline]
    pub(crate) fn begin(&self, index: usize, call: [u64; 2], buffers: [BufferRange; 2]) {
        self.entry(index).begin(call, buffers);
    }

    #[inline]
    pub(crate) fn end(&self, index: usize) {
        self.entry(index).end();
    }

    #[inline]
    fn entry(&self, index: usize) -> &Entry {
        let mut chunk = &self.0.operations;
        for _ in 0..index / chunk.entries.len() {
            chunk = chunk.next.get_or_init(|| Box::new(Chunk::free()));
        }
        &chunk.entries[index % chunk.entries.len()]
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let chunks = iter::successors(Some(&self.0.operations), |chunk| chunk.next.get().map(|next| &**next));
        chunks.flat_map(|chunk| &chunk.entries).for_each(Entry::end);
        self.0.is_used.store(false, Release);
    }
}

/// Reports which buffer of which operation contains an address, if any.
fn say(address: usize, signal: c_int, code: c_int) {
    /// Set once a buffer was reported. Later faults are not reported: a previously installed handler may correct them.
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    static IS_WRITTEN: AtomicBool = AtomicBool::new(false);
    let is_outside = address == 0 && code == SI_KERNEL;
    let Some(found) = find(address, is_outside) else { return };
    if IS_REPORTED.swap(true, Relaxed) {
        fault_signal::wait_for(&IS_WRITTEN, true);
        return;
    }
    describe(found, address, signal, if is_outside { SI_KERNEL } else { code });
    IS_WRITTEN.store(true, Release);
}

/// A buffer that contains an address: its rank, operation and index in the operation, and the offset of the address in it.
type Found = (&'static Rank, &'static Entry, usize, usize);

/// Finds the buffer that contains an address. Uses little stack, because the handlers of other faults need it.
#[inline(never)]
fn find(address: usize, is_outside: bool) -> Option<Found> {
    let mut ranks = Some(&RANKS);
    while let Some(rank) = ranks {
        let mut chunks = Some(&rank.operations);
        while let Some(chunk) = chunks {
            for entry in &chunk.entries {
                if let Some((index, offset)) = entry.find(address, is_outside) {
                    return Some((rank, entry, index, offset));
                }
            }
            chunks = chunk.next.get().map(|next| &**next);
        }
        ranks = rank.next.get().map(|next| &**next);
    }
    None
}

#[inline(never)]
fn describe((rank, entry, mut index, offset): Found, address: usize, signal: c_int, code: c_int) {
    let is_readable = is_own_byte_readable(address);
    // In place, readable memory is the buffer that is written.
    if is_readable && entry.starts[0].load(Relaxed) == entry.starts[1].load(Relaxed) {
        index = 1;
    }
    let header = CallHeader::decode([entry.call[0].load(Relaxed), entry.call[1].load(Relaxed)]);
    let cause = match (signal, code) {
        (_, SI_KERNEL) => "this is no address of a process",
        (libc::SIGBUS, _) => "the file that is mapped there is too short, or the memory has failed",
        (_, SEGV_MAPERR) => "no memory is mapped there",
        _ if is_readable => "the memory there is read-only",
        _ => "the memory there cannot be read",
    };
    fault_signal::say(
        Finding::InvalidBuffer.name(),
        "libnccl-cpu",
        finding::file(),
        format_args!(
            "rank {}: {header}: {} {:#x}, {} bytes, is invalid from byte {offset} on: {cause}",
            rank.rank.load(Relaxed),
            header.buffer_name(index),
            entry.starts[index].load(Relaxed),
            entry.lengths[index].load(Relaxed)
        ),
    );
}

const SI_KERNEL: c_int = 0x80;
const SEGV_MAPERR: c_int = 1;

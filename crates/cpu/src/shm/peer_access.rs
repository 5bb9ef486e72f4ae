//! Peer access: the buffers of other ranks that this rank can use directly.
//!
//! A rank uses the buffers of its own process, and maps the memory from `ncclMemAlloc` of other processes.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use libnccl::internal::environment::variable;

use crate::diag::debug::{self, Subsystem};
use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::mapping::Mapping;
use crate::shm::mem_alloc::{self, ShmHandle};
use crate::shm::process::Process;

/// The number of other ranks' allocations that are remembered, and of other processes' that stay mapped.
pub(super) const CACHE_SIZE: usize = 256;

/// `NCCL_P2P_DISABLE=1`, as in NCCL: no rank uses another's memory, and everything is staged.
static P2P_DISABLED: LazyLock<bool> = LazyLock::new(|| {
    const NAME: &str = "NCCL_P2P_DISABLE";
    let set = variable(NAME).is_some_and(|value| value == "1");
    if set {
        debug::info(Subsystem::Environment, || {
            format!("{NAME} set by environment to 1: no rank uses another's memory")
        });
    }
    set
});

/// The bit of [`RemoteBuffer::in_window`] in its words, above the file descriptor.
const IN_WINDOW: u32 = 32;

/// A buffer of a rank, as it is published to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemoteBuffer {
    pub(super) address: u64,
    /// Its memory, if other processes can map it.
    pub(super) handle: Option<ShmHandle>,
    /// Set if some of it is in a window.
    pub(super) in_window: bool,
}

impl RemoteBuffer {
    pub(crate) const WORDS: usize = 4;

    /// Returns a buffer of this process, with its handle if it is needed by `other_processes`.
    #[inline]
    pub(crate) fn new(buffer: ReadBuf, other_processes: bool) -> Self {
        if *P2P_DISABLED {
            return Self { address: 0, handle: None, in_window: false };
        }
        let (start, length) = (buffer.start(), buffer.length());
        let handle = if other_processes && length > 0 { mem_alloc::find(start, length) } else { None };
        Self { address: start.expose_provenance() as u64, handle, in_window: buffer.is_in_window() }
    }

    /// Returns `true` if its owner lets others use it.
    pub(crate) fn is_published(self) -> bool {
        self.address != 0
    }

    /// Returns `true` if other processes that have mapped this buffer, `memory` of this process, still see what it has.
    pub(crate) fn is_still(self, memory: ReadBuf) -> bool {
        self.handle.is_none() || self.handle == mem_alloc::find(memory.start(), memory.length())
    }

    /// Returns `true` if other processes can map it, as far as its owner knows.
    pub(crate) fn is_shared(self) -> bool {
        self.handle.is_some()
    }

    pub(crate) fn to_words(self) -> [u64; Self::WORDS] {
        let ShmHandle { allocation, file, offset } =
            self.handle.unwrap_or(ShmHandle { allocation: 0, file: 0, offset: 0 });
        [self.address, allocation, u64::from(file) | u64::from(self.in_window) << IN_WINDOW, offset]
    }

    pub(crate) fn from_words([address, allocation, file, offset]: [u64; Self::WORDS]) -> Self {
        let handle = ShmHandle { allocation, file: file as u32, offset };
        Self { address, handle: (allocation != 0).then_some(handle), in_window: file >> IN_WINDOW != 0 }
    }
}

/// An allocation, by its owner's rank and its number there.
pub(super) type Key = (usize, u64);

/// The access to an allocation of another rank.
#[derive(Debug)]
pub(super) enum Access {
    /// It belongs to this process.
    SameProcess,
    Mapped(Arc<Mapping>),
    /// Not every rank has access.
    Denied,
}

/// The allocations of other ranks that a communicator has looked at.
#[derive(Debug, Default)]
pub(crate) struct PeerAccess {
    /// The known allocations, the same at all ranks.
    known: Mutex<BTreeMap<Key, Access>>,
    /// This rank's mappings, also of allocations that only two ranks use; `None` if it cannot be mapped.
    mappings: Mutex<BTreeMap<Key, Option<Arc<Mapping>>>>,
    /// The transports that the log has mentioned, a bit each.
    logged: AtomicU8,
}

impl PeerAccess {
    /// Returns `true` the first time it is called for `transport`.
    pub(crate) fn is_first_use(&self, transport: u8) -> bool {
        // Nearly always `false`, and then nothing is written.
        let bit = 1 << transport;
        self.logged.load(Relaxed) & bit == 0 && self.logged.fetch_or(bit, Relaxed) & bit == 0
    }

    pub(super) fn known(&self) -> MutexGuard<'_, BTreeMap<Key, Access>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mapping of an allocation of `owner`, which is rank `rank` in another process.
    pub(super) fn map(&self, rank: usize, owner: &Process, handle: ShmHandle) -> Option<Arc<Mapping>> {
        let mut mappings = self.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (rank, handle.allocation);
        if mappings.len() >= CACHE_SIZE && !mappings.contains_key(&key) {
            // Those in use stay mapped for as long as they are.
            *mappings = BTreeMap::new();
        }
        let open = || match Mapping::open(owner, handle.file) {
            Ok(mapping) => Some(Arc::new(mapping)),
            Err(error) => {
                debug::info(Subsystem::SharedMemory, || {
                    format!("memory of rank {rank} is not used directly: {}", error.text)
                });
                None
            }
        };
        mappings.entry(key).or_insert_with(open).clone()
    }
}

/// A range of a rank's memory, accessible for as long as this lives.
#[derive(Debug)]
pub(crate) struct MappedRange {
    pub(super) memory: RangeMemory,
    pub(super) length: usize,
    pub(super) in_window: bool,
}

#[derive(Debug)]
pub(super) enum RangeMemory {
    /// At an address of this process.
    Address(u64),
    /// At an offset of a mapping.
    Mapping(Arc<Mapping>, u64),
}

impl MappedRange {
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the address of the byte at `at` in the mapping of another process's memory; `None` if it is not inside, and of memory of
    /// this process.
    #[cfg(feature = "device-api")]
    pub(crate) fn mapped_at(&self, at: usize) -> Option<usize> {
        match self.memory {
            RangeMemory::Address(_) => None,
            RangeMemory::Mapping(..) => self.start(at, 1).map(|start| start.expose_provenance()),
        }
    }

    /// Returns the `length` bytes from `at` on to read, or `None` if they are not inside.
    pub(crate) fn read_buf(&self, at: usize, length: usize) -> Option<ReadBuf> {
        // SAFETY: `start` checks the bounds; the owner guaranteed the memory when it published it, and keeps it until
        // no rank uses it any more.
        let buffer = self.start(at, length).map(|start| unsafe { ReadBuf::new(start, length) })?;
        Some(buffer.in_window(self.in_window))
    }

    /// Returns the `length` bytes from `at` on to write, or `None` if they are not inside.
    pub(crate) fn write_buf(&self, at: usize, length: usize) -> Option<WriteBuf> {
        // SAFETY: as in `read_buf`; concurrent writes are ruled out by the ranks' own synchronization.
        let buffer = self.start(at, length).map(|start| unsafe { WriteBuf::new(start, length) })?;
        Some(buffer.in_window(self.in_window))
    }

    fn start(&self, at: usize, length: usize) -> Option<*mut u8> {
        if length > self.length.checked_sub(at)? {
            return None;
        }
        match &self.memory {
            RangeMemory::Address(address) => {
                Some(std::ptr::with_exposed_provenance_mut((*address as usize).checked_add(at)?))
            }
            RangeMemory::Mapping(mapping, offset) => {
                mapping.range(offset.checked_add(at as u64)?, length).map(std::ptr::NonNull::as_ptr)
            }
        }
    }
}

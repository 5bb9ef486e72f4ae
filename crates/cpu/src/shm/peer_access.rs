//! Peer access: the buffers of other ranks that this rank can use directly.
//!
//! A rank uses buffers of its own process directly, and maps `ncclMemAlloc` memory of other processes.
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

/// The maximum number of other ranks' allocations in the cache, and of other processes' allocations that stay mapped.
pub(super) const CACHE_SIZE: usize = 256;

/// `NCCL_P2P_DISABLE=1`, as in NCCL: no rank accesses another rank's memory, and all data is staged.
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

/// The bit position of [`RemoteBuffer::in_window`] in the published words, above the file descriptor.
const IN_WINDOW: u32 = 32;

/// A rank's buffer, as published to the other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemoteBuffer {
    pub(super) address: u64,
    /// The handle of its memory, if other processes can map it.
    pub(super) handle: Option<ShmHandle>,
    /// Set if some of the buffer is in a window.
    pub(super) in_window: bool,
}

impl RemoteBuffer {
    pub(crate) const WORDS: usize = 4;

    /// Describes a buffer of this process, with its handle if `other_processes` need it.
    #[inline]
    pub(crate) fn new(buffer: ReadBuf, other_processes: bool) -> Self {
        if *P2P_DISABLED {
            return Self { address: 0, handle: None, in_window: false };
        }
        let (start, length) = (buffer.start(), buffer.length());
        let handle = if other_processes && length > 0 { mem_alloc::find(start, length) } else { None };
        Self { address: start.expose_provenance() as u64, handle, in_window: buffer.is_in_window() }
    }

    /// Returns `true` if other ranks may use the buffer.
    pub(crate) fn is_published(self) -> bool {
        self.address != 0
    }

    /// Returns `true` if other processes that have mapped this buffer, which is `memory` in this process, still share its
    /// content.
    pub(crate) fn is_still(self, memory: ReadBuf) -> bool {
        self.handle.is_none() || self.handle == mem_alloc::find(memory.start(), memory.length())
    }

    /// Returns `true` if the owner published a handle that other processes can map.
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

/// Identifies an allocation by its owner's rank and its number there.
pub(super) type Key = (usize, u64);

/// A rank's access to another rank's allocation.
#[derive(Debug)]
pub(super) enum Access {
    /// The allocation belongs to this process.
    SameProcess,
    Mapped(Arc<Mapping>),
    /// Not every rank has access.
    Denied,
}

/// A communicator's cache of other ranks' allocations.
#[derive(Debug, Default)]
pub(crate) struct PeerAccess {
    /// The cached allocations, the same on all ranks.
    known: Mutex<BTreeMap<Key, Access>>,
    /// This rank's mappings, including allocations that only two ranks use. `None` if the allocation cannot be mapped.
    mappings: Mutex<BTreeMap<Key, Option<Arc<Mapping>>>>,
    /// The transports that have been logged, one bit each.
    logged: AtomicU8,
}

impl PeerAccess {
    /// Returns `true` on the first call for `transport`.
    pub(crate) fn is_first_use(&self, transport: u8) -> bool {
        // Nearly always `false`, in which case nothing is written.
        let bit = 1 << transport;
        self.logged.load(Relaxed) & bit == 0 && self.logged.fetch_or(bit, Relaxed) & bit == 0
    }

    pub(super) fn known(&self) -> MutexGuard<'_, BTreeMap<Key, Access>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mapping of an allocation of `owner`, the process of rank `rank`.
    pub(super) fn map(&self, rank: usize, owner: &Process, handle: ShmHandle) -> Option<Arc<Mapping>> {
        let mut mappings = self.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (rank, handle.allocation);
        if mappings.len() >= CACHE_SIZE && !mappings.contains_key(&key) {
            // Mappings in use stay mapped as long as they are used.
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

/// A range of a rank's memory, accessible during the lifetime of this value.
#[derive(Debug)]
pub(crate) struct MappedRange {
    pub(super) memory: RangeMemory,
    pub(super) length: usize,
    pub(super) in_window: bool,
}

#[derive(Debug)]
pub(super) enum RangeMemory {
    /// An address in this process.
    Address(u64),
    /// An offset in a mapping.
    Mapping(Arc<Mapping>, u64),
}

impl MappedRange {
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the address of the byte at `at` in the mapping of another process's memory. Returns `None` if it is out of bounds,
    /// or if the memory belongs to this process.
    #[cfg(feature = "device-api")]
    pub(crate) fn mapped_at(&self, at: usize) -> Option<usize> {
        match self.memory {
            RangeMemory::Address(_) => None,
            RangeMemory::Mapping(..) => self.start(at, 1).map(|start| start.expose_provenance()),
        }
    }

    /// Returns the `length` bytes at `at` for reading, or `None` if they are out of bounds.
    pub(crate) fn read_buf(&self, at: usize, length: usize) -> Option<ReadBuf> {
        // SAFETY: `start` checks the bounds. The owner guaranteed the memory when publishing it, and keeps it until no rank uses
        // it any more.
        let buffer = self.start(at, length).map(|start| unsafe { ReadBuf::new(start, length) })?;
        Some(buffer.in_window(self.in_window))
    }

    /// Returns the `length` bytes at `at` for writing, or `None` if they are out of bounds.
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

//! The context of a call: the calling rank, the shared state, and the rank's access to other ranks' buffers.
//!
//! A rank uses buffers of this process directly, and maps `ncclMemAlloc` memory of other processes. All ranks must agree on
//! whose memory can be used directly. Each rank reads the buffers that all ranks have published. Before an allocation is
//! first used, the ranks exchange whether they could map it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, Mutex};

use libnccl::internal::environment::variable;

use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::mapping::Mapping;
use crate::shm::mem_alloc::{self, ShmHandle};
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;
use crate::sync::lock;

/// A rank's context, resolved once for each call.
#[derive(Clone, Copy)]
pub(crate) struct CallContext<'a> {
    pub(crate) state: &'a SharedState,
    pub(crate) rank: usize,
    pub(crate) peers: &'a PeerAccess,
}

impl CallContext<'_> {
    fn same_process(self, owner: usize) -> bool {
        self.state.process(owner) == self.state.process(self.rank)
    }

    /// Returns `true` if every rank can directly use all `buffers`, which are paired with their owners. All ranks must call this
    /// with the same buffers; all get the same result.
    pub(crate) async fn all_can_map(self, buffers: &[(usize, RemoteBuffer)]) -> Result<bool> {
        if self.state.is_one_process() {
            return Ok(buffers.iter().all(|(_, buffer)| buffer.is_published()));
        }
        let handle = |(owner, buffer): &(usize, RemoteBuffer)| {
            let handle = buffer.handle?;
            Some(((*owner, handle.allocation), handle))
        };
        let Some(handles) = buffers.iter().map(handle).collect::<Option<Vec<_>>>() else { return Ok(false) };
        let is_unknown = |known: &BTreeMap<Key, _>| handles.iter().any(|(key, _)| !known.contains_key(key));
        if is_unknown(&lock(&self.peers.known)) {
            self.map_unknown(&handles).await?;
        }
        let known = lock(&self.peers.known);
        Ok(handles.iter().all(|(key, _)| known.get(key).is_some_and(Option::is_some)))
    }

    /// Maps the allocations in `handles` that are not in the cache, and notifies the other ranks whether that succeeded.
    async fn map_unknown(self, handles: &[(Key, ShmHandle)]) -> Result {
        let mut new = BTreeMap::new();
        {
            let mut known = lock(&self.peers.known);
            if known.len() + handles.len() > CACHE_SIZE {
                // All ranks cache the same allocations, so they all clear the cache at the same time.
                *known = BTreeMap::new();
            }
            for (key, handle) in handles.iter().filter(|(key, _)| !known.contains_key(key)) {
                new.entry(*key).or_insert_with(|| self.memory(key.0, Some(*handle)));
            }
        }
        let possible = self.all_agree(new.values().all(Option::is_some)).await?;
        let new = new.into_iter().map(|(key, memory)| (key, memory.filter(|_| possible)));
        lock(&self.peers.known).extend(new);
        Ok(())
    }

    /// Returns an allocation of `owner`, or `None` if this process cannot access it.
    fn memory(self, owner: usize, handle: Option<ShmHandle>) -> Option<Memory> {
        if self.same_process(owner) {
            return Some(Memory::SameProcess);
        }
        self.peers.map(owner, &self.state.process(owner), handle?).map(Memory::Mapped)
    }

    pub(crate) fn read_buf(self, owner: usize, buffer: RemoteBuffer, length: usize) -> Result<ReadBuf> {
        let start = self.start(owner, buffer, length)?;
        // SAFETY: `start` is the memory's address in this process. `owner`, or its caller, guaranteed the memory in the call that
        // this context belongs to, and does not return from that call before all ranks have announced that they are done.
        Ok(unsafe { ReadBuf::new(start, length) }.in_window(buffer.in_window))
    }

    pub(crate) fn write_buf(self, owner: usize, buffer: RemoteBuffer, length: usize) -> Result<WriteBuf> {
        let start = self.start(owner, buffer, length)?;
        // SAFETY: as in `read_buf`; the collective's plan assigns each part to one rank.
        Ok(unsafe { WriteBuf::new(start, length) }.in_window(buffer.in_window))
    }

    fn start(self, owner: usize, buffer: RemoteBuffer, length: usize) -> Result<*mut u8> {
        if self.same_process(owner) {
            return Ok(std::ptr::with_exposed_provenance_mut(buffer.address as usize));
        }
        let unmapped = || Error::internal(format!("memory of rank {owner} is no longer mapped"));
        let handle = buffer.handle.ok_or_else(unmapped)?;
        let known = lock(&self.peers.known);
        let Some(Some(Memory::Mapped(mapping))) = known.get(&(owner, handle.allocation)) else {
            return Err(unmapped());
        };
        let range = mapping.range(handle.offset, length);
        range.map(std::ptr::NonNull::as_ptr).ok_or_else(|| {
            Error::remote(format!(
                "rank {owner} published {length} bytes at offset {} of an allocation of {} bytes",
                handle.offset,
                mapping.length()
            ))
        })
    }

    /// Returns the `length` bytes of `owner`'s `buffer`, or `None` if this rank cannot access them. Does not involve other ranks.
    pub(crate) fn map(self, owner: usize, buffer: RemoteBuffer, length: usize) -> Option<MappedRange> {
        let memory = if buffer.is_published() { self.memory(owner, buffer.handle)? } else { return None };
        let range = MappedRange { memory, buffer, length };
        range.start(0, length).is_some().then_some(range)
    }

    pub(crate) async fn all_agree(self, vote: bool) -> Result<bool> {
        let Self { state, rank, .. } = self;
        let step = state.next_step(rank).await?;
        state.publish(rank, step, [vote.into(), 0], &[], None);
        state.wait_all(rank, step).await?;
        Ok((0..state.ranks()).all(|rank| state.call_args(rank, step)[0] != 0))
    }
}

/// The maximum number of other ranks' allocations in the cache, and of other processes' allocations that stay mapped.
const CACHE_SIZE: usize = 256;

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
    address: u64,
    /// The handle of the buffer's memory, if other processes can map it.
    handle: Option<ShmHandle>,
    in_window: bool,
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

    pub(crate) fn is_published(self) -> bool {
        self.address != 0
    }

    /// Returns `true` if other processes that have mapped this buffer still share its content. `memory` is the buffer in this
    /// process.
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

type Key = (usize, u64);

/// A rank's allocation, which this process can access.
enum Memory {
    SameProcess,
    Mapped(Arc<Mapping>),
}

/// A communicator's cache of other ranks' allocations.
#[derive(Default)]
pub(crate) struct PeerAccess {
    /// The cached allocations, the same on all ranks. `None` if not every rank can access the allocation.
    known: Mutex<BTreeMap<Key, Option<Memory>>>,
    /// This rank's mappings, including allocations that only two ranks use. `None` if the allocation cannot be mapped.
    mappings: Mutex<BTreeMap<Key, Option<Arc<Mapping>>>>,
    /// The transports that have been logged, one bit each.
    logged: AtomicU8,
}

impl PeerAccess {
    pub(crate) fn is_first_use(&self, transport: u8) -> bool {
        // Nearly always `false`, in which case nothing is written.
        let bit = 1 << transport;
        self.logged.load(Relaxed) & bit == 0 && self.logged.fetch_or(bit, Relaxed) & bit == 0
    }

    /// Returns the mapping of an allocation of `owner`, the process of rank `rank`.
    fn map(&self, rank: usize, owner: &Process, handle: ShmHandle) -> Option<Arc<Mapping>> {
        let mut mappings = lock(&self.mappings);
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
pub(crate) struct MappedRange {
    memory: Memory,
    buffer: RemoteBuffer,
    length: usize,
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
            Memory::SameProcess => None,
            Memory::Mapped(_) => self.start(at, 1).map(|start| start.expose_provenance()),
        }
    }

    /// Returns the `length` bytes at `at` for reading, or `None` if they are out of bounds.
    pub(crate) fn read_buf(&self, at: usize, length: usize) -> Option<ReadBuf> {
        // SAFETY: `start` checks the bounds. The owner guaranteed the memory when publishing it, and keeps it until no rank uses
        // it any more.
        let memory = self.start(at, length).map(|start| unsafe { ReadBuf::new(start, length) })?;
        Some(memory.in_window(self.buffer.in_window))
    }

    /// Returns the `length` bytes at `at` for writing, or `None` if they are out of bounds.
    pub(crate) fn write_buf(&self, at: usize, length: usize) -> Option<WriteBuf> {
        // SAFETY: as in `read_buf`. The owner published the memory for writing, and the ranks' own synchronization rules out
        // concurrent accesses.
        let memory = self.start(at, length).map(|start| unsafe { WriteBuf::new(start, length) })?;
        Some(memory.in_window(self.buffer.in_window))
    }

    fn start(&self, at: usize, length: usize) -> Option<*mut u8> {
        if length > self.length.checked_sub(at)? {
            return None;
        }
        match &self.memory {
            Memory::SameProcess => {
                Some(std::ptr::with_exposed_provenance_mut((self.buffer.address as usize).checked_add(at)?))
            }
            Memory::Mapped(mapping) => {
                let offset = self.buffer.handle?.offset.checked_add(at as u64)?;
                mapping.range(offset, length).map(std::ptr::NonNull::as_ptr)
            }
        }
    }
}

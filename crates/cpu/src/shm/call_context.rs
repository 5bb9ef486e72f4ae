//! The context of a call: the calling rank, the shared state, and the rank's access to other ranks' memory.
//!
//! All ranks must agree on whose memory can be used directly. Each rank reads the buffers that all ranks have published. Before
//! an allocation is first used, the ranks exchange whether they could map it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;

use crate::diag::error::{Error, Result};
use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::mem_alloc::ShmHandle;
use crate::shm::peer_access::{Access, CACHE_SIZE, MappedRange, PeerAccess, RangeMemory, RemoteBuffer};
use crate::shm::shared_state::SharedState;

/// A rank's context, resolved once for each call.
#[derive(Debug, Clone, Copy)]
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
        if buffers.iter().any(|(_, buffer)| !buffer.is_published()) {
            return Ok(false);
        }
        if self.state.is_one_process() {
            return Ok(true);
        }
        let Some(handles) = buffers
            .iter()
            .map(|(owner, buffer)| Some((*owner, buffer.handle?)))
            .collect::<Option<Vec<(usize, ShmHandle)>>>()
        else {
            return Ok(false);
        };
        let unknown = |known: &BTreeMap<_, _>| {
            handles.iter().filter(|(owner, handle)| !known.contains_key(&(*owner, handle.allocation))).count()
        };
        if unknown(&self.peers.known()) > 0 {
            self.map_unknown(&handles).await?;
        }
        let known = self.peers.known();
        let is_denied = |(owner, handle): &(usize, ShmHandle)| {
            matches!(known.get(&(*owner, handle.allocation)), None | Some(Access::Denied))
        };
        Ok(!handles.iter().any(is_denied))
    }

    /// Maps the allocations in `handles` that are not in the cache, and notifies the other ranks whether that succeeded.
    async fn map_unknown(self, handles: &[(usize, ShmHandle)]) -> Result {
        let mut new = BTreeMap::new();
        {
            let mut known = self.peers.known();
            if known.len() + handles.len() > CACHE_SIZE {
                // All ranks cache the same allocations, so they all clear the cache at the same time.
                *known = BTreeMap::new();
            }
            for (owner, handle) in handles {
                let key = (*owner, handle.allocation);
                if !known.contains_key(&key) && !new.contains_key(&key) {
                    new.insert(key, self.access(*owner, *handle));
                }
            }
        }
        let possible = !new.values().any(|access| matches!(access, Access::Denied));
        let possible = self.all_agree(possible).await?;
        let mut known = self.peers.known();
        for (key, access) in new {
            known.insert(key, if possible { access } else { Access::Denied });
        }
        Ok(())
    }

    /// Returns the `length` bytes of `owner`'s `buffer` for reading.
    pub(crate) fn read_buf(self, owner: usize, buffer: RemoteBuffer, length: usize) -> Result<ReadBuf> {
        let start = self.start(owner, buffer, length)?;
        // SAFETY: `start` is the memory's address in this process. `owner`, or its caller, guaranteed the memory in the call that
        // this context belongs to, and does not return from that call before all ranks have announced that they are done.
        Ok(unsafe { ReadBuf::new(start, length) }.in_window(buffer.in_window))
    }

    /// Returns the `length` bytes of `owner`'s `buffer` for writing.
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
        let known = self.peers.known();
        let Some(Access::Mapped(mapping)) = known.get(&(owner, handle.allocation)) else {
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
        if !buffer.is_published() {
            return None;
        }
        let memory = if self.same_process(owner) {
            RangeMemory::Address(buffer.address)
        } else {
            let handle = buffer.handle?;
            let mapping = self.peers.map(owner, &self.state.process(owner), handle)?;
            mapping.range(handle.offset, length)?;
            RangeMemory::Mapping(mapping, handle.offset)
        };
        Some(MappedRange { memory, length, in_window: buffer.in_window })
    }

    fn access(self, owner: usize, handle: ShmHandle) -> Access {
        if self.same_process(owner) {
            return Access::SameProcess;
        }
        let mapping = self.peers.map(owner, &self.state.process(owner), handle);
        mapping.map_or(Access::Denied, Access::Mapped)
    }

    /// Returns `true` if `vote` is `true` on every rank.
    pub(crate) async fn all_agree(self, vote: bool) -> Result<bool> {
        let Self { state, rank, .. } = self;
        let step = state.next_step(rank).await?;
        state.publish(rank, step, [vote.into(), 0], &[], None);
        state.wait_all(rank, step).await?;
        Ok((0..state.ranks()).all(|rank| state.call_args(rank, step)[0] != 0))
    }
}

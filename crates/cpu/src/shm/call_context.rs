//! The context of a call: the rank that makes it, the state that it shares with the others, and its access to their
//! memory.
//!
//! All ranks have to come to the same answer about whose memory can be used: each sees what all others published of
//! their buffers, and before an allocation is used for the first time the ranks tell each other whether they could
//! map it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::cma;
use crate::shm::mem_alloc::ShmHandle;
use crate::shm::peer_access::{Access, CACHE_SIZE, MappedRange, PeerAccess, RangeMemory, RemoteBuffer};
use crate::shm::shared_state::SharedState;

/// A rank, resolved once for each call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallContext<'a> {
    pub(crate) state: &'a SharedState,
    pub(crate) rank: usize,
    pub(crate) peers: &'a PeerAccess,
}

fn is_efault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

impl CallContext<'_> {
    fn same_process(self, owner: usize) -> bool {
        self.state.process(owner) == self.state.process(self.rank)
    }

    /// Returns `true` if every rank can use all `buffers`, given with their owners, directly. All ranks must call this
    /// with the same buffers, and get the same answer.
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
            handles.iter().filter(|(owner, handle)| known.get(&(*owner, handle.allocation)).is_none()).count()
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

    /// Maps the allocations among `handles` that are not known yet, and tells the other ranks whether that succeeded.
    async fn map_unknown(self, handles: &[(usize, ShmHandle)]) -> Result {
        let mut new = BTreeMap::new();
        {
            let mut known = self.peers.known();
            if known.len() + handles.len() > CACHE_SIZE {
                // All ranks know the same allocations, so all forget them at the same time.
                *known = BTreeMap::new();
            }
            for (owner, handle) in handles {
                let key = (*owner, handle.allocation);
                if known.get(&key).is_none() && new.get(&key).is_none() {
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

    /// Returns `true` if every rank can [`read`](Self::read) and [`write`](Self::write) `buffers`, given with their
    /// owners. All ranks must call this with the same buffers, and get the same answer; the first call tries.
    pub(crate) async fn all_can_read(self, buffers: &[(usize, RemoteBuffer)]) -> Result<bool> {
        if buffers.iter().any(|(_, buffer)| !buffer.is_published()) {
            return Ok(false);
        }
        if let Some(readable) = self.peers.readable.get() {
            return Ok(*readable);
        }
        let mut byte = [0];
        // SAFETY: one byte, accessed through this only.
        let to = unsafe { WriteBuf::new(byte.as_mut_ptr(), 1) };
        let mut others = buffers.iter().filter(|(owner, _)| !self.same_process(*owner));
        let unreadable = others.find_map(|(owner, buffer)| {
            let error = cma::read(&self.state.process(*owner), buffer.address, to).err()?;
            Some(format!("memory of rank {owner} cannot be read and is staged: {error}"))
        });
        let unwritable = || {
            let error = cma::check_write(&self.state.process(self.rank)).err()?;
            Some(format!("memory of other ranks cannot be written and is staged: {error}"))
        };
        let can_time_out = self.peers.can_time_out.then(|| {
            "memory of other ranks is staged: a timeout could not end a copy by a process that is stopped"
                .into()
        });
        let obstacle = can_time_out.or(unreadable).or_else(unwritable);
        if let Some(obstacle) = &obstacle {
            debug::info(Subsystem::SharedMemory, || obstacle.clone());
        }
        let readable = self.all_agree(obstacle.is_none()).await?;
        Ok(*self.peers.readable.get_or_init(|| readable))
    }

    /// Copies from `offset` bytes into `buffer` of `owner`, which is in this process or in another.
    pub(crate) fn read(self, owner: usize, buffer: RemoteBuffer, offset: usize, to: WriteBuf) -> Result {
        let address = buffer.address + offset as u64;
        if self.same_process(owner) {
            let start = std::ptr::with_exposed_provenance(address as usize);
            // SAFETY: as in `read_buf`.
            to.copy(unsafe { ReadBuf::new(start, to.length()) }.in_window(buffer.in_window), false);
            return Ok(());
        }
        cma::read(&self.state.process(owner), address, to).map_err(|error| {
            let what = self.describe_fault(owner, buffer.address, offset..offset + to.length(), &error);
            Error::remote(
                what.unwrap_or_else(|| {
                    format!("{} bytes of rank {owner} cannot be read: {error}", to.length())
                }),
            )
        })
    }

    /// Copies to `offset` bytes into `buffer` of `owner`.
    pub(crate) fn write(self, owner: usize, buffer: RemoteBuffer, offset: usize, from: ReadBuf) -> Result {
        let address = buffer.address + offset as u64;
        if self.same_process(owner) {
            let start = std::ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: as in `write_buf`.
            unsafe { WriteBuf::new(start, from.length()) }.in_window(buffer.in_window).copy(from, false);
            return Ok(());
        }
        cma::write(&self.state.process(owner), address, from).map_err(|error| {
            let what = self.describe_fault(owner, buffer.address, offset..offset + from.length(), &error);
            let what = what.or_else(|| {
                // What can be read there cannot be written, unless this rank's own memory is at fault.
                let own = self.state.process(self.rank);
                let is_own = cma::first_unreadable(&own, from.start().addr() as u64, from.length()).is_some();
                (is_efault(&error) && !is_own).then(|| {
                    format!(
                        "the receive buffer {:#x} of rank {owner} cannot be written: it is read-only",
                        buffer.address
                    )
                })
            });
            Error::remote(what.unwrap_or_else(|| {
                format!("{} bytes of rank {owner} cannot be written: {error}", from.length())
            }))
        })
    }

    /// Describes the memory of another process in which an access to the bytes in `range` of a buffer has failed, if nothing can
    /// be read there.
    fn describe_fault(
        self,
        owner: usize,
        buffer: u64,
        range: Range<usize>,
        error: &io::Error,
    ) -> Option<String> {
        let process = self.state.process(owner);
        let start = buffer + range.start as u64;
        let at = is_efault(error).then(|| cma::first_unreadable(&process, start, range.len()))??;
        Some(format!(
            "the buffer {buffer:#x} of rank {owner} is invalid from byte {} on: no memory is mapped there, or it cannot be read",
            range.start + at
        ))
    }

    /// Returns the `length` bytes of `buffer` of `owner`, to read.
    pub(crate) fn read_buf(self, owner: usize, buffer: RemoteBuffer, length: usize) -> Result<ReadBuf> {
        let start = self.start(owner, buffer, length)?;
        // SAFETY: `start` is the memory's address here. `owner`, or its caller, guaranteed it in the call that this
        // belongs to, and does not return from that before all ranks have announced that they are done.
        Ok(unsafe { ReadBuf::new(start, length) }.in_window(buffer.in_window))
    }

    /// Returns the `length` bytes of `buffer` of `owner`, to write.
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

    /// Returns the `length` bytes of `buffer` of `owner`, or `None` if this rank cannot use them. No other rank is
    /// involved.
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

    /// Returns `true` if `vote` is `true` at every rank.
    pub(crate) async fn all_agree(self, vote: bool) -> Result<bool> {
        let Self { state, rank, .. } = self;
        let step = state.next_step(rank).await?;
        state.publish(rank, step, [vote.into(), 0], &[], None);
        state.wait_all(rank, step).await?;
        Ok((0..state.ranks()).all(|rank| state.call_args(rank, step)[0] != 0))
    }
}

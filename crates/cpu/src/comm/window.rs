//! Windows: memory that every rank registers with all ranks, so that each rank can write into the memory of the others.
//!
//! Every rank must be able to access all of the memory directly. If a rank cannot, registration succeeds without a window, as in
//! NCCL on a system without symmetric memory.

use std::ops::Range;
use std::sync::Arc;

use cuda_common::finding::Finding;
use libnccl::sys::NCCL_WIN_COLL_SYMMETRIC;

use crate::coll::call::ControlCall;
use crate::coll::operation::control_allgather;
use crate::comm::registry::{Kind, Object};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::diag::report;
use crate::diag::settings::STRICT;
use crate::shm::access::{Exposed, WindowId};
use crate::shm::call_context::{CallContext, MappedRange, RemoteBuffer};
use crate::shm::layout::WINDOWS;
use crate::shm::shared_state::SharedState;
use crate::shm::window_memory::WindowMemory;
use crate::sync::executor;

/// The part of a window that a rank contributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowPart {
    pub(crate) buffer: RemoteBuffer,
    /// The address that the caller passed. For device memory, `buffer` has a different address.
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) flags: u32,
}

/// A published part and its id. The id is `None` if the rank that contributes the part has too many windows.
type Published = (WindowPart, Option<WindowId>);

/// Number of words of a published part: its buffer, start, length, flags, and id.
const WORDS: usize = RemoteBuffer::WORDS + 5;

pub(crate) struct Window {
    rank: usize,
    parts: Vec<MappedPart>,
    flags: u32,
    /// Keeps this rank's own part listed as memory that other ranks may write.
    _memory: Arc<WindowMemory>,
}

struct MappedPart {
    memory: MappedRange,
    start: usize,
    id: WindowId,
}

impl WindowPart {
    fn to_bytes(self, id: Option<WindowId>) -> Vec<u8> {
        let [a, b, c, d] = self.buffer.to_words();
        let (index, serial) = id.map_or((0, 0), |WindowId { index, serial }| (index as u64, serial));
        let words: [u64; WORDS] =
            [a, b, c, d, self.start as u64, self.length as u64, self.flags.into(), index, serial];
        words.map(u64::to_ne_bytes).concat()
    }

    /// Returns the part that another rank published, or `None` if it is malformed.
    fn from_bytes(bytes: &[u8]) -> Option<Published> {
        let (words, []) = bytes.as_chunks() else { return None };
        let [a, b, c, d, start, length, flags, index, serial] =
            <[[u8; 8]; WORDS]>::try_from(words).ok()?.map(u64::from_ne_bytes);
        let part = Self {
            buffer: RemoteBuffer::from_words([a, b, c, d]),
            start: usize::try_from(start).ok()?,
            length: usize::try_from(length).ok()?,
            flags: u32::try_from(flags).ok()?,
        };
        let id = WindowId { index: usize::try_from(index).ok()?, serial };
        Some((part, (serial != 0).then_some(id)))
    }
}

impl Window {
    /// Registers a window together with all other ranks. Each rank contributes its `part`. Returns `None` unless all ranks can
    /// use all parts. In that case, no other rank accesses the memory after this returns.
    pub(crate) async fn register(
        context: CallContext<'_>,
        part: WindowPart,
        memory: Arc<WindowMemory>,
    ) -> Result<Option<Self>> {
        let CallContext { state, rank, .. } = context;
        let own = context.map(rank, part.buffer, part.length).and_then(|own| own.read_buf(0, part.length));
        let id = state.open_window(rank);
        let parts = Self::exchange(context, part, id).await;
        if let Ok(Some(parts)) = parts {
            return Ok(Some(Self { rank, parts, flags: part.flags, _memory: memory }));
        }
        // Another rank may have created its window and put data into it.
        if let Some(id) = id {
            state.close_window(rank, id, Exposed { buffers: own.as_slice(), windows: 1 }).await;
        }
        parts.map(|_| None)
    }

    async fn exchange(
        context: CallContext<'_>,
        part: WindowPart,
        id: Option<WindowId>,
    ) -> Result<Option<Vec<MappedPart>>> {
        let CallContext { state, rank, .. } = context;
        let all = control_allgather(state, rank, ControlCall::RegisterWindow, &part.to_bytes(id)).await?;
        let (mut parts, mut ids) = (vec![], vec![]);
        for (owner, bytes) in all.iter().enumerate() {
            let (part, id) = WindowPart::from_bytes(bytes).ok_or_else(|| {
                Error::remote(format!("rank {owner} sent an invalid window descriptor: {bytes:?}"))
            })?;
            parts.push(part);
            ids.push(id.ok_or_else(|| {
                Error::usage(format!("rank {owner} has {WINDOWS} windows already: deregister some of them"))
            })?);
        }
        check_alike(context, &parts)?;
        let buffers: Vec<_> = parts.iter().enumerate().map(|(owner, part)| (owner, part.buffer)).collect();
        if !context.all_can_map(&buffers).await? {
            debug::info(Subsystem::Registration, || {
                let private = parts.iter().position(|part| !part.buffer.is_shared());
                let why = private.map_or("a rank cannot map another's memory".into(), |owner| {
                    format!("the memory of rank {owner} is not from ncclMemAlloc")
                });
                format!("No window for {} bytes of rank {rank}: {why}", part.length)
            });
            return Ok(None);
        }
        let mapped = parts.iter().zip(ids).enumerate().map(|(owner, (part, id))| {
            let memory = context.map(owner, part.buffer, part.length).ok_or_else(|| {
                Error::remote(format!(
                    "rank {owner} published a window of {} bytes that its memory does not have",
                    part.length
                ))
            })?;
            Ok(MappedPart { memory, start: part.start, id })
        });
        mapped.collect::<Result<_>>().map(Some)
    }

    /// Closes this rank's part: from now on, puts of other ranks into it fail, and the memory belongs to the caller again.
    pub(crate) fn close(&self, state: &SharedState) {
        let own = self.part(self.rank);
        let own = own.read_buf(0, own.length());
        let exposed = Exposed { buffers: own.as_slice(), windows: 1 };
        let close = state.close_window(self.rank, self.parts[self.rank].id, exposed);
        executor::run_one(close, state.ranks(), |_| ());
    }

    /// Returns an error if a rank has deregistered its part. The caller must have begun an access.
    pub(crate) fn check_open(&self, state: &SharedState, rank: usize) -> Result {
        if state.is_window_open(rank, self.parts[rank].id) {
            return Ok(());
        }
        Err(Error::usage(format!("rank {rank} has deregistered its part of the window")))
    }

    /// Returns the address that this rank passed.
    pub(crate) fn start(&self) -> usize {
        self.parts[self.rank].start
    }

    pub(crate) fn part(&self, rank: usize) -> &MappedRange {
        &self.parts[rank].memory
    }

    /// Returns the address at which this process accesses byte `offset` of a rank's part, or `None` if the offset is outside the
    /// part. For memory of this process, this is the owner's address; for host memory of another process, the mapping's.
    #[cfg(feature = "device-api")]
    pub(crate) fn address(&self, rank: usize, offset: usize) -> Option<usize> {
        let MappedPart { memory, start, .. } = &self.parts[rank];
        let inside = offset < memory.length();
        inside.then(|| memory.mapped_at(offset).unwrap_or(start + offset))
    }

    /// Returns whether `length` bytes at `start` are in this rank's part of a symmetric window.
    pub(crate) fn contains(&self, start: usize, length: usize) -> bool {
        let Range { start: first, end } = self.addresses();
        let is_symmetric = self.flags & NCCL_WIN_COLL_SYMMETRIC != 0;
        is_symmetric && first <= start && start.saturating_add(length) <= end
    }

    /// Returns the address range of this rank's own part, as passed by the caller.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.start()..self.start() + self.part(self.rank).length()
    }
}

impl Object for Arc<Window> {
    const KIND: Kind = Kind::Window;
}

/// Checks that all ranks passed the same flags and size. Different sizes are reported; in strict mode, they are an error.
fn check_alike(CallContext { state, rank, .. }: CallContext<'_>, parts: &[WindowPart]) -> Result {
    if let Some(other) = parts.iter().position(|other| other.flags != parts[0].flags) {
        return Err(Error::usage(format!(
            "the ranks called ncclCommWindowRegister with different winFlags: rank {other} with {:#x}, \
             rank 0 with {:#x}",
            parts[other].flags, parts[0].flags
        )));
    }
    if let Some(other) = parts.iter().position(|other| other.length != parts[0].length) {
        let text = format!(
            "the ranks called ncclCommWindowRegister with different sizes: rank {other} with {}, rank 0 with {}",
            parts[other].length, parts[0].length
        );
        if other == rank {
            report::report(Finding::DifferentArguments, rank, &format!("{text}; {}", state.name()));
        }
        if *STRICT {
            return Err(Error::usage(format!("{text} (LIBNCCL_CPU_STRICT is 1)")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_part_is_decoded_and_a_malformed_one_is_refused() {
        let shared = RemoteBuffer::from_words([1 << 40, 7, 3, 4096]);
        for buffer in [shared, RemoteBuffer::from_words([5, 0, 0, 0])] {
            let part = WindowPart { buffer, start: 1 << 41, length: 8192, flags: 3 };
            for id in [None, Some(WindowId { index: 5, serial: 9 })] {
                assert_eq!(WindowPart::from_bytes(&part.to_bytes(id)), Some((part, id)));
            }
        }
        assert_eq!(WindowPart::from_bytes(&[0; 71]), None);
        assert_eq!(WindowPart::from_bytes(&[0xff; 72]), None, "flags of 64 bits");
    }
}

//! Operations that NCCL lacks, or that old versions lack, composed of several C calls in a group.
//!
//! A part without elements needs no C call, because the peer's count is 0 too.
#![allow(unsafe_code)] // Calls C.

use std::ptr;

use super::call::{Call, nccl};
use crate::backend::call;
use crate::buffer::RawSlice;
use crate::error::{Result, ResultCode};
use crate::sys::ncclRedOp_t;

/// One rank's part of a buffer that holds the parts of all ranks, one after the other.
struct Part {
    rank: usize,
    c_rank: i32,
    elements: RawSlice,
}

/// Makes a call for each part that is not empty, in rank order.
fn each_part(
    buffer: RawSlice,
    counts: impl Iterator<Item = usize>,
    call: impl FnMut(Part) -> Result<ResultCode>,
) -> Result<ResultCode> {
    let mut end = 0_usize;
    // There are no more ranks than an i32 can count, and the sum of the counts is no more than the buffer holds.
    let part = move |(c_rank, (rank, count)): (i32, (usize, usize))| {
        let start = end;
        end += count;
        Part { rank, c_rank, elements: buffer.slice(start, count) }
    };
    let parts = (0..).zip(counts.enumerate()).map(part);
    parts.filter(|part| part.elements.len() > 0).map(call).try_fold(ResultCode::SUCCESS, |_, called| called)
}

impl Call<'_, '_> {
    pub(super) fn nothing(&self) -> RawSlice {
        self.recv.slice(0, 0)
    }

    /// Returns whether the library lacks a function. Sends and receives then replace it. They take no options, so options are
    /// then an error.
    pub(super) fn lacks<F>(&self, function: Option<F>) -> Result<bool> {
        if function.is_some() {
            return Ok(false);
        }
        if let (Some(config), Some(function)) = (self.on.config, self.operation.function_with_config)
            && !config.is_default()
        {
            self.library().function::<()>(function, None)?;
        }
        Ok(true)
    }
}

/// Calls into C. The caller must have entered NCCL.
impl Call<'_, '_> {
    /// Runs `calls` as one operation, in an NCCL group. Inside another group, NCCL only counts the nesting.
    pub(super) fn together(&self, calls: impl FnOnce() -> Result<ResultCode>) -> Result<ResultCode> {
        let library = self.library();
        // SAFETY: has no arguments.
        unsafe { call!(library, ncclGroupStart()) }?;
        let called = calls();
        // SAFETY: has no arguments; ends the group that was started above. After a failed call it starts nothing.
        let ended = unsafe { call!(library, ncclGroupEnd()) };
        called.and(ended)
    }

    pub(super) fn enqueue_send(&self, part: RawSlice, peer: i32) -> Result<ResultCode> {
        // SAFETY: the creator of the slice guarantees that it holds its elements, and lives long enough.
        unsafe { nccl!(self, ncclSend(part.as_raw(), part.len(), part.data_type().as_raw(), peer)) }
    }

    pub(super) fn enqueue_recv(&self, part: RawSlice, peer: i32) -> Result<ResultCode> {
        // SAFETY: as above.
        unsafe {
            nccl!(self, ncclRecv(part.as_raw().cast_mut(), part.len(), part.data_type().as_raw(), peer))
        }
    }

    /// Sends a part to each rank, and receives a part from each rank.
    pub(super) fn exchange_parts(
        &self,
        sent: impl Iterator<Item = usize>,
        received: impl Iterator<Item = usize>,
    ) -> Result<ResultCode> {
        self.together(|| {
            each_part(self.send, sent, |part| self.enqueue_send(part.elements, part.c_rank))?;
            each_part(self.recv, received, |part| self.enqueue_recv(part.elements, part.c_rank))
        })
    }

    /// Sends this rank's part to the root, which receives all parts, except its own if that is in place already.
    pub(super) fn gather_parts(&self, root: i32, counts: impl Iterator<Item = usize>) -> Result<ResultCode> {
        let (is_root, is_in_place) = (self.ranks[0] == Some(self.rank()), self.operation.is_in_place);
        self.together(|| {
            if self.send.len() > 0 && !(is_root && is_in_place) {
                self.enqueue_send(self.send, root)?;
            }
            each_part(self.recv, counts.take(if is_root { self.size() } else { 0 }), |part| match is_in_place
                && part.c_rank == root
            {
                true => Ok(ResultCode::SUCCESS),
                false => self.enqueue_recv(part.elements, part.c_rank),
            })
        })
    }

    /// Sends all parts from the root, except its own if that is in place already, and receives this rank's part.
    pub(super) fn scatter_parts(&self, root: i32, counts: impl Iterator<Item = usize>) -> Result<ResultCode> {
        let (is_root, is_in_place) = (self.ranks[0] == Some(self.rank()), self.operation.is_in_place);
        self.together(|| {
            let counts = counts.take(if is_root { self.size() } else { 0 });
            let sent = each_part(self.send, counts, |part| match is_in_place && part.c_rank == root {
                true => Ok(ResultCode::SUCCESS),
                false => self.enqueue_send(part.elements, part.c_rank),
            })?;
            if self.recv.len() == 0 || is_root && is_in_place {
                return Ok(sent);
            }
            self.enqueue_recv(self.recv, root)
        })
    }

    /// Broadcasts each rank's part. Since 2.29.2, NCCL recognizes a group of such broadcasts as one operation.
    pub(super) fn broadcast_parts(&self, counts: &[usize]) -> Result<ResultCode> {
        let config = self.config()?;
        self.together(|| {
            each_part(self.recv, counts.iter().copied(), |Part { rank, c_rank, elements }| {
                let from = if rank == self.rank() { self.from() } else { ptr::null() };
                let to = elements.as_raw().cast_mut();
                // SAFETY: this rank's part has the length of the send buffer, and the receive buffer holds all parts.
                unsafe {
                    nccl!(
                        self,
                        config,
                        ncclBroadcast
                            | ncclBroadcastConfig(from, to, elements.len(), self.data_type(), c_rank)
                    )
                }
            })
        })
    }

    /// Reduces each rank's part, with that rank as the root.
    pub(super) fn reduce_parts(&self, counts: &[usize], op: ncclRedOp_t) -> Result<ResultCode> {
        let config = self.config()?;
        self.together(|| {
            each_part(self.send, counts.iter().copied(), |Part { rank, c_rank, elements }| {
                let to = if rank == self.rank() { self.to() } else { ptr::null_mut() };
                // SAFETY: the send buffer holds all parts, and this rank's has the length of the receive buffer.
                unsafe {
                    nccl!(
                        self,
                        config,
                        ncclReduce
                            | ncclReduceConfig(
                                elements.as_raw(),
                                to,
                                elements.len(),
                                self.data_type(),
                                op,
                                c_rank
                            )
                    )
                }
            })
        })
    }
}

//! The collectives with a count for each rank, which NCCL lacks: the checks of their arguments, and the groups of NCCL's
//! operations that they consist of. `name` is that of the method, for errors.
//!
//! A count of 0 is no call: the rank at the other end has the same count, and makes none either.

use super::arguments::{
    check_buffers, check_length, check_own_count, check_own_exchange, sum_of_counts, to_c_rank,
};
use super::collectives::Operator;
use super::grouping::Grouping;
use super::operations::Operations;
use super::point_to_point::{call_recv, call_send, issue_together};
use crate::backend::call;
use crate::{BufferElement, DeviceSlice, DeviceSliceMut, Result, ResultCode, StreamRef};

/// The part of a rank in a buffer that has the parts of all ranks, one after the other.
struct Part {
    rank: usize,
    c_rank: i32,
    start: usize,
    count: usize,
}

/// Returns the parts that are not empty, in rank order.
fn parts(counts: &[usize]) -> impl Iterator<Item = Part> {
    let mut end = 0_usize;
    // There are no more ranks than an i32 can count, and the caller has checked that the sum is no overflow.
    let part = move |(c_rank, (rank, &count)): (i32, (usize, &usize))| {
        let start = end;
        end += count;
        Part { rank, c_rank, start, count }
    };
    (0..).zip(counts.iter().enumerate()).map(part).filter(|part| part.count > 0)
}

/// A broadcast of each rank's part: a group of these is what NCCL recognizes as one operation, since 2.29.2.
pub(super) fn all_gather_v<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    counts: &[usize],
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let total = sum_of_counts(name, "counts", counts, comm.size)?;
    check_own_count(name, "send", send.len(), counts[comm.rank], comm.rank)?;
    check_length(name, "receive", recv.len(), total, 1)?;
    let (library, raw, stream) = (comm.library(), comm.raw(), stream.as_raw());
    let (from, data_type) = (send.as_raw(), send.data_type().as_raw());
    let config = operations.raw_config(name)?;
    issue_together(library, || {
        parts(counts).try_fold(ResultCode::SUCCESS, |_, Part { rank, c_rank, start, count }| {
            let from = if rank == comm.rank { from } else { std::ptr::null() };
            let to = recv.slice_mut(start, count).as_raw();
            // SAFETY: as in `collectives::broadcast`: the checks above ensure that this rank's part has the length of
            // the send buffer, and that the receive buffer holds all parts.
            unsafe {
                match &config {
                    None => call!(library, ncclBroadcast(from, to, count, data_type, c_rank, raw, stream)),
                    Some(config) => {
                        let config = config.as_ptr();
                        call!(
                            library,
                            ncclBroadcastConfig(from, to, count, data_type, c_rank, raw, stream, config)
                        )
                    }
                }
            }
        })
    })
}

/// A reduction of each rank's part, with that rank as the root.
pub(super) fn reduce_scatter_v<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    counts: &[usize],
    op: Operator,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let op = op.to_raw(comm)?;
    let total = sum_of_counts(name, "counts", counts, comm.size)?;
    check_own_count(name, "receive", recv.len(), counts[comm.rank], comm.rank)?;
    check_length(name, "send", send.len(), total, 1)?;
    let (library, raw, stream) = (comm.library(), comm.raw(), stream.as_raw());
    let (to, data_type) = (recv.as_raw(), send.data_type().as_raw());
    let config = operations.raw_config(name)?;
    issue_together(library, || {
        parts(counts).try_fold(ResultCode::SUCCESS, |_, Part { rank, c_rank, start, count }| {
            let from = send.slice(start, count).as_raw();
            let to = if rank == comm.rank { to } else { std::ptr::null_mut() };
            // SAFETY: as in `collectives::reduce`: the checks above ensure that the send buffer holds all parts, and
            // that this rank's part has the length of the receive buffer.
            unsafe {
                match &config {
                    None => call!(library, ncclReduce(from, to, count, data_type, op, c_rank, raw, stream)),
                    Some(config) => {
                        let config = config.as_ptr();
                        call!(
                            library,
                            ncclReduceConfig(from, to, count, data_type, op, c_rank, raw, stream, config)
                        )
                    }
                }
            }
        })
    })
}

pub(super) fn all_to_all_v<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    send_counts: &[usize],
    recv_counts: &[usize],
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.without_config(name)?;
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let sent = sum_of_counts(name, "send counts", send_counts, comm.size)?;
    let received = sum_of_counts(name, "receive counts", recv_counts, comm.size)?;
    check_length(name, "send", send.len(), sent, 1)?;
    check_length(name, "receive", recv.len(), received, 1)?;
    check_own_exchange(name, send_counts[comm.rank], recv_counts[comm.rank], "its receive counts have")?;
    issue_together(comm.library(), || {
        for Part { c_rank, start, count, .. } in parts(send_counts) {
            call_send(comm, send.slice(start, count), c_rank, stream)?;
        }
        for Part { c_rank, start, count, .. } in parts(recv_counts) {
            call_recv(comm, recv.slice_mut(start, count), c_rank, stream)?;
        }
        Ok(ResultCode::SUCCESS)
    })
}

pub(super) fn gather_v<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    counts: &[usize],
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.without_config(name)?;
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let c_root = to_c_rank(name, "root", root, comm.size)?;
    let is_root = comm.rank == root;
    if is_root {
        let total = sum_of_counts(name, "counts", counts, comm.size)?;
        check_own_count(name, "send", send.len(), counts[root], root)?;
        check_length(name, "root's receive", recv.len(), total, 1)?;
    }
    issue_together(comm.library(), || {
        if !send.is_empty() {
            call_send(comm, send, c_root, stream)?;
        }
        for Part { c_rank, start, count, .. } in parts(if is_root { counts } else { &[] }) {
            call_recv(comm, recv.slice_mut(start, count), c_rank, stream)?;
        }
        Ok(ResultCode::SUCCESS)
    })
}

pub(super) fn scatter_v<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    counts: &[usize],
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.without_config(name)?;
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let c_root = to_c_rank(name, "root", root, comm.size)?;
    let is_root = comm.rank == root;
    if is_root {
        let total = sum_of_counts(name, "counts", counts, comm.size)?;
        check_own_count(name, "receive", recv.len(), counts[root], root)?;
        check_length(name, "root's send", send.len(), total, 1)?;
    }
    issue_together(comm.library(), || {
        for Part { c_rank, start, count, .. } in parts(if is_root { counts } else { &[] }) {
            call_send(comm, send.slice(start, count), c_rank, stream)?;
        }
        if !recv.is_empty() {
            call_recv(comm, recv, c_root, stream)?;
        }
        Ok(ResultCode::SUCCESS)
    })
}

//! The collectives with a count for each rank, which NCCL lacks: the checks of their arguments, and the groups of NCCL's
//! operations that they consist of. `name` is that of the method, for errors.
//!
//! A count of 0 is no call: the rank at the other end has the same count, and makes none either.

use super::arguments::{
    check_buffers, check_length, check_own_count, check_own_exchange, sum_of_counts, to_c_rank,
};
use super::collectives::{Operator, call_configured};
use super::grouping::Grouping;
use super::handle::Communicator;
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

/// Makes a call for each part that is not empty, in rank order.
fn each_part(counts: &[usize], mut call: impl FnMut(Part) -> Result<ResultCode>) -> Result<ResultCode> {
    let mut end = 0_usize;
    // There are no more ranks than an i32 can count, and the caller has checked that the sum is no overflow.
    let part = move |(c_rank, (rank, &count)): (i32, (usize, &usize))| {
        let start = end;
        end += count;
        Part { rank, c_rank, start, count }
    };
    let mut parts = (0..).zip(counts.iter().enumerate()).map(part).filter(|part| part.count > 0);
    parts.try_fold(ResultCode::SUCCESS, |_, part| call(part))
}

/// Returns where the part of `rank` begins, and its count.
fn part_of(rank: usize, counts: &[usize]) -> (usize, usize) {
    (counts[..rank].iter().sum(), counts[rank])
}

/// Sends each part of the buffer to its rank, but for the `skipped` one, which is there already.
fn send_parts<T: BufferElement>(
    comm: &Communicator,
    buffer: DeviceSlice<'_, T>,
    counts: &[usize],
    skipped: Option<usize>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    each_part(counts, |Part { rank, c_rank, start, count }| {
        if Some(rank) == skipped {
            return Ok(ResultCode::SUCCESS);
        }
        call_send(comm, buffer.slice(start, count), c_rank, stream)
    })
}

/// Receives each part of the buffer from its rank, but for the `skipped` one, which is there already.
fn recv_parts<T: BufferElement>(
    comm: &Communicator,
    buffer: &DeviceSliceMut<'_, T>,
    counts: &[usize],
    skipped: Option<usize>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    each_part(counts, |Part { rank, c_rank, start, count }| {
        if Some(rank) == skipped {
            return Ok(ResultCode::SUCCESS);
        }
        call_recv(comm, buffer.slice_mut(start, count), c_rank, stream)
    })
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
    let (from, data_type) = (send.as_raw(), send.data_type().as_raw());
    let config = operations.raw_config(name)?;
    issue_together(comm.library(), || {
        each_part(counts, |Part { rank, c_rank, start, count }| {
            let from = if rank == comm.rank { from } else { std::ptr::null() };
            let to = recv.slice_mut(start, count).as_raw();
            // SAFETY: as in `collectives::broadcast`: the checks above ensure that this rank's part has the length of
            // the send buffer, and that the receive buffer holds all parts.
            unsafe {
                call_configured!(
                    operations,
                    &config,
                    ncclBroadcast,
                    ncclBroadcastConfig,
                    (from, to, count, data_type, c_rank),
                    stream
                )
            }
        })
    })
}

pub(super) fn all_gather_v_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    counts: &[usize],
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_counts(name, &buffer, counts, comm.size)?;
    let (start, count) = part_of(comm.rank, counts);
    let own = buffer.part(0, 1).slice(start, count);
    all_gather_v(name, operations, own, buffer, counts, stream)
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
    let (to, data_type) = (recv.as_raw(), send.data_type().as_raw());
    let config = operations.raw_config(name)?;
    issue_together(comm.library(), || {
        each_part(counts, |Part { rank, c_rank, start, count }| {
            let from = send.slice(start, count).as_raw();
            let to = if rank == comm.rank { to } else { std::ptr::null_mut() };
            // SAFETY: as in `collectives::reduce`: the checks above ensure that the send buffer holds all parts, and
            // that this rank's part has the length of the receive buffer.
            unsafe {
                call_configured!(
                    operations,
                    &config,
                    ncclReduce,
                    ncclReduceConfig,
                    (from, to, count, data_type, op, c_rank),
                    stream
                )
            }
        })
    })
}

pub(super) fn reduce_scatter_v_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    counts: &[usize],
    op: Operator,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_counts(name, &buffer, counts, comm.size)?;
    let (start, count) = part_of(comm.rank, counts);
    let own = buffer.slice_mut(start, count);
    reduce_scatter_v(name, operations, buffer.part(0, 1), own, counts, op, stream)
}

/// Checks the counts of the parts of a buffer that all ranks use in place.
fn check_counts<T>(
    name: &'static str,
    buffer: &DeviceSliceMut<'_, T>,
    counts: &[usize],
    size: usize,
) -> Result<()> {
    let total = sum_of_counts(name, "counts", counts, size)?;
    check_length(name, "in-place", buffer.len(), total, 1)
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
        send_parts(comm, send, send_counts, None, stream)?;
        recv_parts(comm, &recv, recv_counts, None, stream)
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
        recv_parts(comm, &recv, if is_root { counts } else { &[] }, None, stream)
    })
}

pub(super) fn gather_v_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    counts: &[usize],
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.without_config(name)?;
    if comm.rank != root {
        let nothing = buffer.slice_mut(0, 0);
        return gather_v(name, operations, buffer.part(0, 1), nothing, counts, root, stream);
    }
    check_buffers(comm, name, buffer.data_type(), [buffer.memory_space()])?;
    let total = sum_of_counts(name, "counts", counts, comm.size)?;
    check_length(name, "root's", buffer.len(), total, 1)?;
    issue_together(comm.library(), || recv_parts(comm, &buffer, counts, Some(root), stream))
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
        let sent = send_parts(comm, send, if is_root { counts } else { &[] }, None, stream)?;
        if recv.is_empty() { Ok(sent) } else { call_recv(comm, recv, c_root, stream) }
    })
}

pub(super) fn scatter_v_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    counts: &[usize],
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.without_config(name)?;
    if comm.rank != root {
        let nothing = buffer.part(0, 1).slice(0, 0);
        return scatter_v(name, operations, nothing, buffer, counts, root, stream);
    }
    check_buffers(comm, name, buffer.data_type(), [buffer.memory_space()])?;
    let total = sum_of_counts(name, "counts", counts, comm.size)?;
    check_length(name, "root's", buffer.len(), total, 1)?;
    issue_together(comm.library(), || send_parts(comm, buffer.part(0, 1), counts, Some(root), stream))
}

//! The collectives: the checks of their arguments, and the calls into C. `name` is that of the method, for errors.

use super::arguments::{check_buffers, check_divisible, check_length, to_c_rank};
use super::grouping::Grouping;
use super::handle::Communicator;
use super::operations::Operations;
use super::point_to_point::{call_recv, call_send, issue_together};
use crate::backend::call;
use crate::{BufferElement, DeviceSlice, DeviceSliceMut, ReduceOp, Result, ResultCode, StreamRef, sys};

/// The operator of a reduction.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operator {
    BuiltIn(ReduceOp),
    /// Created for a communicator.
    Custom(sys::ncclRedOp_t),
}

impl Operator {
    /// Returns C's number; an error if the library does not know the operator.
    #[inline(always)]
    pub(super) fn to_raw(self, communicator: &Communicator) -> Result<sys::ncclRedOp_t> {
        match self {
            Self::BuiltIn(op) => op.require(communicator.library()).map(|()| op.as_raw()),
            Self::Custom(raw) => Ok(raw),
        }
    }
}

/// Calls the plain function, or its form with options if there are any, with the communicator and the stream after the
/// other arguments; for use in an `unsafe` block. `name` is that of the method.
macro_rules! call_with {
    ($operations:ident, $name:ident, $plain:ident, $configured:ident, $arguments:tt, $stream:ident) => {{
        call_configured!(
            $operations,
            $operations.raw_config($name)?,
            $plain,
            $configured,
            $arguments,
            $stream
        )
    }};
}

/// Calls as [`call_with`] does, with the options that the operation has.
macro_rules! call_configured {
    ($operations:ident, $config:expr, $plain:ident, $configured:ident, ($($argument:expr),*), $stream:ident) => {{
        let communicator = $operations.communicator();
        let (library, raw, stream) = (communicator.library(), communicator.raw(), $stream.as_raw());
        match $config {
            None => call!(library, $plain($($argument,)* raw, stream)),
            Some(config) => call!(library, $configured($($argument,)* raw, stream, config.as_ptr())),
        }
    }};
}
pub(super) use call_configured;

impl From<ReduceOp> for Operator {
    #[inline]
    fn from(op: ReduceOp) -> Self {
        Self::BuiltIn(op)
    }
}

#[inline(always)]
pub(super) fn all_reduce<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    op: Operator,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let op = op.to_raw(comm)?;
    let count = send.len();
    check_length(name, "receive", recv.len(), count, 1)?;
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), send.data_type().as_raw());
    // SAFETY: the checks above ensure that both buffers hold `count` elements in the communicator's memory; the
    // creator of the views guarantees that they live long enough. The communicator is live, as the caller has entered
    // NCCL.
    unsafe {
        call_with!(
            operations,
            name,
            ncclAllReduce,
            ncclAllReduceConfig,
            (send, recv, count, data_type, op),
            stream
        )
    }
}

#[inline(always)]
pub(super) fn all_reduce_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    op: Operator,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    all_reduce(name, operations, buffer.part(0, 1), buffer, op, stream)
}

#[inline(always)]
pub(super) fn broadcast<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let c_root = to_c_rank(name, "root", root, comm.size)?;
    let count = recv.len();
    if comm.rank == root {
        check_length(name, "root's send", send.len(), count, 1)?;
    }
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), send.data_type().as_raw());
    // SAFETY: as in `all_reduce`; NCCL reads the send buffer on the root only.
    unsafe {
        call_with!(
            operations,
            name,
            ncclBroadcast,
            ncclBroadcastConfig,
            (send, recv, count, data_type, c_root),
            stream
        )
    }
}

#[inline(always)]
pub(super) fn broadcast_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    broadcast(name, operations, buffer.part(0, 1), buffer, root, stream)
}

#[inline(always)]
pub(super) fn reduce<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    op: Operator,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let op = op.to_raw(comm)?;
    let c_root = to_c_rank(name, "root", root, comm.size)?;
    let count = send.len();
    if comm.rank == root {
        check_length(name, "root's receive", recv.len(), count, 1)?;
    }
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), send.data_type().as_raw());
    // SAFETY: as in `all_reduce`; NCCL writes the receive buffer on the root only.
    unsafe {
        call_with!(
            operations,
            name,
            ncclReduce,
            ncclReduceConfig,
            (send, recv, count, data_type, op, c_root),
            stream
        )
    }
}

#[inline(always)]
pub(super) fn reduce_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    op: Operator,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    reduce(name, operations, buffer.part(0, 1), buffer, op, root, stream)
}

#[inline(always)]
pub(super) fn all_gather<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let count = send.len();
    check_length(name, "receive", recv.len(), count, comm.size)?;
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), send.data_type().as_raw());
    // SAFETY: as in `all_reduce`, with `count` elements from each rank in the receive buffer.
    unsafe {
        call_with!(
            operations,
            name,
            ncclAllGather,
            ncclAllGatherConfig,
            (send, recv, count, data_type),
            stream
        )
    }
}

#[inline(always)]
pub(super) fn all_gather_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_divisible(name, "", buffer.len(), comm.size)?;
    all_gather(name, operations, buffer.part(comm.rank, comm.size), buffer, stream)
}

#[inline(always)]
pub(super) fn reduce_scatter<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    op: Operator,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let op = op.to_raw(comm)?;
    let count = recv.len();
    check_length(name, "send", send.len(), count, comm.size)?;
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), send.data_type().as_raw());
    // SAFETY: as in `all_reduce`, with `count` elements for each rank in the send buffer.
    unsafe {
        call_with!(
            operations,
            name,
            ncclReduceScatter,
            ncclReduceScatterConfig,
            (send, recv, count, data_type, op),
            stream
        )
    }
}

#[inline(always)]
pub(super) fn reduce_scatter_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    op: Operator,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_divisible(name, "", buffer.len(), comm.size)?;
    reduce_scatter(name, operations, buffer.part(0, 1), buffer.part_mut(comm.rank, comm.size), op, stream)
}

#[inline(always)]
pub(super) fn all_to_all<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    check_divisible(name, "send ", send.len(), comm.size)?;
    check_length(name, "receive", recv.len(), send.len(), 1)?;
    let count = send.len() / comm.size;
    if comm.library().functions.ncclAlltoAll.is_none() {
        return fall_back_to_point_to_point(operations, "ncclAlltoAllConfig", || {
            ranks(comm).try_fold(ResultCode::SUCCESS, |_, (peer, c_peer)| {
                call_send(comm, send.slice(peer * count, count), c_peer, stream)?;
                call_recv(comm, recv.slice_mut(peer * count, count), c_peer, stream)
            })
        });
    }
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), send.data_type().as_raw());
    // SAFETY: as in `all_reduce`, with `count` elements for each rank in both buffers.
    unsafe {
        call_with!(operations, name, ncclAlltoAll, ncclAlltoAllConfig, (send, recv, count, data_type), stream)
    }
}

#[inline(always)]
pub(super) fn gather<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let c_root = to_c_rank(name, "root", root, comm.size)?;
    let count = send.len();
    let is_root = comm.rank == root;
    if is_root {
        check_length(name, "root's receive", recv.len(), count, comm.size)?;
    }
    if comm.library().functions.ncclGather.is_none() {
        return fall_back_to_point_to_point(operations, "ncclGatherConfig", || {
            let sent = call_send(comm, send, c_root, stream)?;
            ranks(comm).filter(|_| is_root).try_fold(sent, |_, (peer, c_peer)| {
                call_recv(comm, recv.slice_mut(peer * count, count), c_peer, stream)
            })
        });
    }
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), send.data_type().as_raw());
    // SAFETY: as in `all_gather`; NCCL writes the receive buffer on the root only.
    unsafe {
        call_with!(
            operations,
            name,
            ncclGather,
            ncclGatherConfig,
            (send, recv, count, data_type, c_root),
            stream
        )
    }
}

#[inline(always)]
pub(super) fn scatter<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let c_root = to_c_rank(name, "root", root, comm.size)?;
    let count = recv.len();
    let is_root = comm.rank == root;
    if is_root {
        check_length(name, "root's send", send.len(), count, comm.size)?;
    }
    if comm.library().functions.ncclScatter.is_none() {
        return fall_back_to_point_to_point(operations, "ncclScatterConfig", || {
            for (peer, c_peer) in ranks(comm).filter(|_| is_root) {
                call_send(comm, send.slice(peer * count, count), c_peer, stream)?;
            }
            call_recv(comm, recv, c_root, stream)
        });
    }
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), send.data_type().as_raw());
    // SAFETY: as in `reduce_scatter`; NCCL reads the send buffer on the root only.
    unsafe {
        call_with!(
            operations,
            name,
            ncclScatter,
            ncclScatterConfig,
            (send, recv, count, data_type, c_root),
            stream
        )
    }
}

#[inline(always)]
pub(super) fn gather_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    if comm.rank != root {
        return gather(name, operations, buffer.part(0, 1), buffer.slice_mut(0, 0), root, stream);
    }
    check_divisible(name, "", buffer.len(), comm.size)?;
    gather(name, operations, buffer.part(root, comm.size), buffer, root, stream)
}

#[inline(always)]
pub(super) fn scatter_in_place<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.communicator();
    if comm.rank != root {
        return scatter(name, operations, buffer.part(0, 1).slice(0, 0), buffer, root, stream);
    }
    check_divisible(name, "", buffer.len(), comm.size)?;
    scatter(name, operations, buffer.part(0, 1), buffer.part_mut(root, comm.size), root, stream)
}

/// Runs `messages`, which sends and receives, as one operation, for a library that lacks the operation.
fn fall_back_to_point_to_point<'b>(
    operations: Operations<'_, impl Grouping<'b>>,
    configured: &'static str,
    messages: impl FnOnce() -> Result<ResultCode>,
) -> Result<ResultCode> {
    let library = operations.communicator().library();
    if operations.has_config() {
        // Absent, as the plain function is.
        return library.function::<()>(configured, None).map(|()| ResultCode::SUCCESS);
    }
    issue_together(library, messages)
}

/// Returns the ranks, and their numbers in C.
fn ranks(comm: &Communicator) -> impl Iterator<Item = (usize, i32)> {
    (0..comm.size).zip(0..)
}

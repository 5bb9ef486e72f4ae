//! Send and receive, alone and together: the checks of their arguments, and the calls into C.

use super::arguments::{check_buffers, check_own_exchange, to_c_rank};
use super::grouping::Grouping;
use super::handle::Communicator;
use super::operations::Operations;
use crate::backend::{Library, call};
use crate::{BufferElement, DeviceSlice, DeviceSliceMut, Result, ResultCode, StreamRef};

#[inline(always)]
pub(super) fn send<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSlice<'_, T>,
    peer: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.without_config(name)?;
    check_buffers(comm, name, buffer.data_type(), [buffer.memory_space()])?;
    let peer = to_c_rank(name, "peer", peer, comm.size)?;
    call_send(comm, buffer, peer, stream)
}

#[inline(always)]
pub(super) fn recv<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    buffer: DeviceSliceMut<'_, T>,
    peer: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.without_config(name)?;
    check_buffers(comm, name, buffer.data_type(), [buffer.memory_space()])?;
    let peer = to_c_rank(name, "peer", peer, comm.size)?;
    call_recv(comm, buffer, peer, stream)
}

pub(super) fn sendrecv<'b, T: BufferElement>(
    name: &'static str,
    operations: Operations<'_, impl Grouping<'b>>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    destination: usize,
    source: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = operations.without_config(name)?;
    check_buffers(comm, name, send.data_type(), [send.memory_space(), recv.memory_space()])?;
    let c_destination = to_c_rank(name, "destination", destination, comm.size)?;
    let c_source = to_c_rank(name, "source", source, comm.size)?;
    if destination == comm.rank && source == comm.rank {
        check_own_exchange(name, send.len(), recv.len(), "it receives")?;
    }
    issue_together(comm.library(), || {
        call_send(comm, send, c_destination, stream)?;
        call_recv(comm, recv, c_source, stream)
    })
}

/// Runs `calls` as one operation, in a group of NCCL. Inside another group, this one only counts.
pub(super) fn issue_together(
    library: &Library,
    calls: impl FnOnce() -> Result<ResultCode>,
) -> Result<ResultCode> {
    // SAFETY: has no arguments.
    unsafe { call!(library, ncclGroupStart()) }?;
    let called = calls();
    // SAFETY: has no arguments; ends the group that was started above. After a failed call it starts nothing.
    let ended = unsafe { call!(library, ncclGroupEnd()) };
    called.and(ended)
}

/// Sends a message; the caller has checked the arguments.
#[inline(always)]
pub(super) fn call_send<T: BufferElement>(
    comm: &Communicator,
    buffer: DeviceSlice<'_, T>,
    peer: i32,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let (raw, data_type) = (buffer.as_raw(), buffer.data_type().as_raw());
    // SAFETY: the creator of the view guarantees that it holds `len()` elements and lives long enough; it is in the
    // communicator's memory, as the caller has checked.
    unsafe {
        call!(comm.library(), ncclSend(raw, buffer.len(), data_type, peer, comm.raw(), stream.as_raw()))
    }
}

/// Receives a message; the caller has checked the arguments.
#[inline(always)]
pub(super) fn call_recv<T: BufferElement>(
    comm: &Communicator,
    buffer: DeviceSliceMut<'_, T>,
    peer: i32,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let (raw, data_type) = (buffer.as_raw(), buffer.data_type().as_raw());
    // SAFETY: as in `call_send`.
    unsafe {
        call!(comm.library(), ncclRecv(raw, buffer.len(), data_type, peer, comm.raw(), stream.as_raw()))
    }
}

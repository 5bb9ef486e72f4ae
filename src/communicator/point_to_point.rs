//! Send and receive: the checks of their arguments, and the calls into C.

use super::arguments::{check_buffers, to_c_rank};
use super::grouping::Grouping;
use super::operations::Operations;
use crate::backend::call;
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
    let (raw, data_type) = (buffer.as_raw(), buffer.data_type().as_raw());
    // SAFETY: the creator of the view guarantees that it holds `len()` elements and lives long enough; it is in the
    // communicator's memory by the check above.
    unsafe {
        call!(comm.library(), ncclSend(raw, buffer.len(), data_type, peer, comm.raw(), stream.as_raw()))
    }
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
    let (raw, data_type) = (buffer.as_raw(), buffer.data_type().as_raw());
    // SAFETY: as in `send`.
    unsafe {
        call!(comm.library(), ncclRecv(raw, buffer.len(), data_type, peer, comm.raw(), stream.as_raw()))
    }
}

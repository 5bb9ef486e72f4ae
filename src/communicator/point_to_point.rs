//! Sending and receiving: their arguments' checks, and their calls into C.

use super::Operations;
use crate::backend::call;
use crate::{Communicator, DeviceSlice, DeviceSliceMut, Element, Error, Result, ResultCode, StreamRef};

#[inline(always)]
pub(super) fn send<T: Element>(
    on: Operations<'_>,
    buffer: DeviceSlice<'_, T>,
    peer: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "send";
    let comm = on.without_config(name)?;
    comm.accepts::<T, 1>(name, [buffer.memory_space()])?;
    let peer = rank_below(name, "peer", peer, comm.size)?;
    let (raw, data_type) = (buffer.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: the buffer holds what its length says, in the communicator's memory, for as long as the view
    // promises.
    unsafe {
        call!(comm.library(), ncclSend(raw, buffer.len(), data_type, peer, comm.raw(), stream.as_raw()))
    }
}

#[inline(always)]
pub(super) fn recv<T: Element>(
    on: Operations<'_>,
    buffer: DeviceSliceMut<'_, T>,
    peer: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "recv";
    let comm = on.without_config(name)?;
    comm.accepts::<T, 1>(name, [buffer.memory_space()])?;
    let peer = rank_below(name, "peer", peer, comm.size)?;
    let (raw, data_type) = (buffer.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: as in `send`, and no one else uses the memory.
    unsafe {
        call!(comm.library(), ncclRecv(raw, buffer.len(), data_type, peer, comm.raw(), stream.as_raw()))
    }
}

impl<'scope> Operations<'scope> {
    /// NCCL has no form of the call that takes options.
    #[inline]
    pub(super) fn without_config(self, call: &'static str) -> Result<&'scope Communicator> {
        match self.config {
            None => Ok(self.communicator),
            Some(_) => Err(Error::usage(call, "takes no options of its own; NCCL has them for collectives")),
        }
    }
}

/// A rank as C wants it.
#[inline]
pub(super) fn rank_below(call: &'static str, what: &str, rank: usize, size: usize) -> Result<i32> {
    i32::try_from(rank).ok().filter(|_| rank < size).ok_or_else(|| {
        Error::argument(call, format!("{what} {rank} is not below {size}, the communicator's size"))
    })
}

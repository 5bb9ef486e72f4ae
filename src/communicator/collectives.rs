//! The collectives: their arguments' checks, and their calls into C.

use super::point_to_point::rank_below;
use crate::backend::call;
use crate::{Communicator, DeviceSlice, DeviceSliceMut, Element, Error, MemorySpace, Result, ResultCode};
use crate::{ReduceOp, StreamRef};

pub(super) fn all_reduce<T: Element>(
    comm: &Communicator,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    op: ReduceOp,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "all_reduce";
    comm.in_memory(name, [send.memory_space(), recv.memory_space()])?;
    let count = send.len();
    comm.long_enough(name, "receive", recv.len(), count, 1)?;
    // SAFETY: both buffers hold `count` elements by the checks above, in the communicator's memory, for as
    // long as the views promise.
    unsafe {
        let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
        call!(
            comm.library,
            ncclAllReduce(send, recv, count, data_type, op.as_raw(), comm.raw, stream.as_raw())
        )
    }
}

pub(super) fn all_reduce_in_place<T: Element>(
    comm: &Communicator,
    buffer: DeviceSliceMut<'_, T>,
    op: ReduceOp,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    all_reduce(comm, buffer.part(0, 1), buffer, op, stream)
}

pub(super) fn broadcast<T: Element>(
    comm: &Communicator,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "broadcast";
    comm.in_memory(name, [send.memory_space(), recv.memory_space()])?;
    let c_root = rank_below(name, "root", root, comm.size)?;
    let count = recv.len();
    if comm.rank == root {
        comm.long_enough(name, "root's send", send.len(), count, 1)?;
    }
    // SAFETY: as in `all_reduce`; NCCL reads the send buffer on the root only.
    unsafe {
        let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
        call!(comm.library, ncclBroadcast(send, recv, count, data_type, c_root, comm.raw, stream.as_raw()))
    }
}

pub(super) fn broadcast_in_place<T: Element>(
    comm: &Communicator,
    buffer: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    broadcast(comm, buffer.part(0, 1), buffer, root, stream)
}

pub(super) fn reduce<T: Element>(
    comm: &Communicator,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    op: ReduceOp,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "reduce";
    comm.in_memory(name, [send.memory_space(), recv.memory_space()])?;
    let c_root = rank_below(name, "root", root, comm.size)?;
    let count = send.len();
    if comm.rank == root {
        comm.long_enough(name, "root's receive", recv.len(), count, 1)?;
    }
    // SAFETY: as in `all_reduce`; NCCL writes the receive buffer on the root only.
    unsafe {
        let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
        let (op, stream) = (op.as_raw(), stream.as_raw());
        call!(comm.library, ncclReduce(send, recv, count, data_type, op, c_root, comm.raw, stream))
    }
}

pub(super) fn reduce_in_place<T: Element>(
    comm: &Communicator,
    buffer: DeviceSliceMut<'_, T>,
    op: ReduceOp,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    reduce(comm, buffer.part(0, 1), buffer, op, root, stream)
}

pub(super) fn all_gather<T: Element>(
    comm: &Communicator,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "all_gather";
    comm.in_memory(name, [send.memory_space(), recv.memory_space()])?;
    let count = send.len();
    comm.long_enough(name, "receive", recv.len(), count, comm.size)?;
    // SAFETY: as in `all_reduce`, with `count` elements of each rank in the receive buffer.
    unsafe {
        let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
        call!(comm.library, ncclAllGather(send, recv, count, data_type, comm.raw, stream.as_raw()))
    }
}

pub(super) fn all_gather_in_place<T: Element>(
    comm: &Communicator,
    buffer: DeviceSliceMut<'_, T>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    comm.divisible("all_gather_in_place", buffer.len())?;
    all_gather(comm, buffer.part(comm.rank, comm.size), buffer, stream)
}

pub(super) fn reduce_scatter<T: Element>(
    comm: &Communicator,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    op: ReduceOp,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "reduce_scatter";
    comm.in_memory(name, [send.memory_space(), recv.memory_space()])?;
    let count = recv.len();
    comm.long_enough(name, "send", send.len(), count, comm.size)?;
    // SAFETY: as in `all_reduce`, with `count` elements for each rank in the send buffer.
    unsafe {
        let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
        let (op, stream) = (op.as_raw(), stream.as_raw());
        call!(comm.library, ncclReduceScatter(send, recv, count, data_type, op, comm.raw, stream))
    }
}

pub(super) fn reduce_scatter_in_place<T: Element>(
    comm: &Communicator,
    buffer: DeviceSliceMut<'_, T>,
    op: ReduceOp,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    comm.divisible("reduce_scatter_in_place", buffer.len())?;
    reduce_scatter(comm, buffer.part(0, 1), buffer.part_mut(comm.rank, comm.size), op, stream)
}

impl Communicator {
    /// Host memory for a GPU, or device memory for the CPU implementation, cannot be right.
    pub(super) fn in_memory<const N: usize>(
        &self,
        call: &'static str,
        buffers: [Option<MemorySpace>; N],
    ) -> Result<()> {
        let own = self.memory_space();
        match buffers.into_iter().flatten().find(|space| *space != own) {
            Some(space) => Err(Error::argument(
                call,
                format!("a buffer is in {space} memory; the communicator works on {own} memory"),
            )),
            None => Ok(()),
        }
    }

    /// `count` elements times `ranks`, or which buffer is too short for what.
    fn long_enough(
        &self,
        call: &'static str,
        buffer: &str,
        holds: usize,
        count: usize,
        ranks: usize,
    ) -> Result<()> {
        let needs = count.checked_mul(ranks);
        if needs.is_some_and(|needs| needs <= holds) {
            return Ok(());
        }
        let needs = needs.map_or_else(|| "more than there can be".into(), |needs| needs.to_string());
        let why = if ranks == 1 { String::new() } else { format!(", {ranks} ranks times {count}") };
        Err(Error::argument(
            call,
            format!("the {buffer} buffer holds {holds} elements, and needs {needs}{why}"),
        ))
    }

    fn divisible(&self, call: &'static str, holds: usize) -> Result<()> {
        if holds.is_multiple_of(self.size) {
            return Ok(());
        }
        let size = self.size;
        Err(Error::argument(
            call,
            format!("the buffer's {holds} elements are not a multiple of {size}, the ranks"),
        ))
    }
}

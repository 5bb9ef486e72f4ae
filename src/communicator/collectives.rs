//! The collectives: their arguments' checks, and their calls into C.

use std::ffi::c_void;

use super::point_to_point::rank_below;
use super::{Communicator, Operations};
use crate::backend::call;
use crate::collective_config::RawCollectiveConfig;
use crate::{CollectiveConfig, DeviceSlice, DeviceSliceMut, Element, Error, MemorySpace};
use crate::{Result, ResultCode, StreamRef, sys};

/// A reduction as C knows it: built in, or made for a communicator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operator(pub(super) sys::ncclRedOp_t);

/// Calls the plain function, or its form with a configuration if there is one, with the communicator and the stream
/// behind the other arguments; to be used in `unsafe`. `name` is the method's.
macro_rules! call_with {
    ($on:ident, $name:ident, $plain:ident, $configured:ident, ($($argument:expr),*), $stream:ident) => {{
        let (library, raw, stream) = ($on.communicator.library(), $on.communicator.raw(), $stream.as_raw());
        match $on.raw_config($name)? {
            None => call!(library, $plain($($argument,)* raw, stream)),
            Some(config) => call!(library, $configured($($argument,)* raw, stream, config.as_ptr())),
        }
    }};
}

#[inline(always)]
pub(super) fn all_reduce<T: Element>(
    on: Operations<'_>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    Operator(op): Operator,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "all_reduce";
    let comm = on.communicator;
    comm.accepts::<T, 2>(name, [send.memory_space(), recv.memory_space()])?;
    let count = send.len();
    long_enough(name, "receive", recv.len(), count, 1)?;
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: both buffers hold `count` elements by the checks above, in the communicator's memory, for as
    // long as the views promise; the communicator is live, as the caller has entered NCCL with it.
    unsafe {
        call_with!(on, name, ncclAllReduce, ncclAllReduceConfig, (send, recv, count, data_type, op), stream)
    }
}

#[inline(always)]
pub(super) fn all_reduce_in_place<T: Element>(
    on: Operations<'_>,
    buffer: DeviceSliceMut<'_, T>,
    op: Operator,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    all_reduce(on, buffer.part(0, 1), buffer, op, stream)
}

#[inline(always)]
pub(super) fn broadcast<T: Element>(
    on: Operations<'_>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "broadcast";
    let comm = on.communicator;
    comm.accepts::<T, 2>(name, [send.memory_space(), recv.memory_space()])?;
    let c_root = rank_below(name, "root", root, comm.size)?;
    let count = recv.len();
    if comm.rank == root {
        long_enough(name, "root's send", send.len(), count, 1)?;
    }
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: as in `all_reduce`; NCCL reads the send buffer on the root only.
    unsafe {
        call_with!(
            on,
            name,
            ncclBroadcast,
            ncclBroadcastConfig,
            (send, recv, count, data_type, c_root),
            stream
        )
    }
}

#[inline(always)]
pub(super) fn broadcast_in_place<T: Element>(
    on: Operations<'_>,
    buffer: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    broadcast(on, buffer.part(0, 1), buffer, root, stream)
}

#[inline(always)]
pub(super) fn reduce<T: Element>(
    on: Operations<'_>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    Operator(op): Operator,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "reduce";
    let comm = on.communicator;
    comm.accepts::<T, 2>(name, [send.memory_space(), recv.memory_space()])?;
    let c_root = rank_below(name, "root", root, comm.size)?;
    let count = send.len();
    if comm.rank == root {
        long_enough(name, "root's receive", recv.len(), count, 1)?;
    }
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: as in `all_reduce`; NCCL writes the receive buffer on the root only.
    unsafe {
        call_with!(on, name, ncclReduce, ncclReduceConfig, (send, recv, count, data_type, op, c_root), stream)
    }
}

#[inline(always)]
pub(super) fn reduce_in_place<T: Element>(
    on: Operations<'_>,
    buffer: DeviceSliceMut<'_, T>,
    op: Operator,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    reduce(on, buffer.part(0, 1), buffer, op, root, stream)
}

#[inline(always)]
pub(super) fn all_gather<T: Element>(
    on: Operations<'_>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "all_gather";
    let comm = on.communicator;
    comm.accepts::<T, 2>(name, [send.memory_space(), recv.memory_space()])?;
    let count = send.len();
    long_enough(name, "receive", recv.len(), count, comm.size)?;
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: as in `all_reduce`, with `count` elements of each rank in the receive buffer.
    unsafe {
        call_with!(on, name, ncclAllGather, ncclAllGatherConfig, (send, recv, count, data_type), stream)
    }
}

#[inline(always)]
pub(super) fn all_gather_in_place<T: Element>(
    on: Operations<'_>,
    buffer: DeviceSliceMut<'_, T>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = on.communicator;
    divisible("all_gather_in_place", "", buffer.len(), comm.size)?;
    all_gather(on, buffer.part(comm.rank, comm.size), buffer, stream)
}

#[inline(always)]
pub(super) fn reduce_scatter<T: Element>(
    on: Operations<'_>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    Operator(op): Operator,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "reduce_scatter";
    let comm = on.communicator;
    comm.accepts::<T, 2>(name, [send.memory_space(), recv.memory_space()])?;
    let count = recv.len();
    long_enough(name, "send", send.len(), count, comm.size)?;
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: as in `all_reduce`, with `count` elements for each rank in the send buffer.
    unsafe {
        call_with!(
            on,
            name,
            ncclReduceScatter,
            ncclReduceScatterConfig,
            (send, recv, count, data_type, op),
            stream
        )
    }
}

#[inline(always)]
pub(super) fn reduce_scatter_in_place<T: Element>(
    on: Operations<'_>,
    buffer: DeviceSliceMut<'_, T>,
    op: Operator,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = on.communicator;
    divisible("reduce_scatter_in_place", "", buffer.len(), comm.size)?;
    reduce_scatter(on, buffer.part(0, 1), buffer.part_mut(comm.rank, comm.size), op, stream)
}

#[inline(always)]
pub(super) fn all_to_all<T: Element>(
    on: Operations<'_>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "all_to_all";
    let comm = on.communicator;
    comm.accepts::<T, 2>(name, [send.memory_space(), recv.memory_space()])?;
    divisible(name, "send ", send.len(), comm.size)?;
    long_enough(name, "receive", recv.len(), send.len(), 1)?;
    let count = send.len() / comm.size;
    if comm.library().functions.ncclAlltoAll.is_none() {
        return on.by_point_to_point("ncclAlltoAllConfig", || {
            for peer in 0..comm.size {
                point_to_point(comm, Some(send.part(peer, comm.size)), None, peer, stream)?;
                point_to_point(comm, None, Some(recv.part_mut(peer, comm.size)), peer, stream)?;
            }
            Ok(())
        });
    }
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: as in `all_reduce`, with `count` elements for and of each rank in the buffers.
    unsafe { call_with!(on, name, ncclAlltoAll, ncclAlltoAllConfig, (send, recv, count, data_type), stream) }
}

#[inline(always)]
pub(super) fn gather<T: Element>(
    on: Operations<'_>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "gather";
    let comm = on.communicator;
    comm.accepts::<T, 2>(name, [send.memory_space(), recv.memory_space()])?;
    let c_root = rank_below(name, "root", root, comm.size)?;
    let count = send.len();
    let is_root = comm.rank == root;
    if is_root {
        long_enough(name, "root's receive", recv.len(), count, comm.size)?;
    }
    if comm.library().functions.ncclGather.is_none() {
        return on.by_point_to_point("ncclGatherConfig", || {
            point_to_point(comm, Some(send), None, root, stream)?;
            let senders = if is_root { 0..comm.size } else { 0..0 };
            senders.into_iter().try_for_each(|peer| {
                point_to_point(comm, None, Some(recv.slice_mut(peer * count, count)), peer, stream)
            })
        });
    }
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: as in `all_gather`; NCCL writes the receive buffer on the root only.
    unsafe {
        call_with!(on, name, ncclGather, ncclGatherConfig, (send, recv, count, data_type, c_root), stream)
    }
}

#[inline(always)]
pub(super) fn scatter<T: Element>(
    on: Operations<'_>,
    send: DeviceSlice<'_, T>,
    recv: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "scatter";
    let comm = on.communicator;
    comm.accepts::<T, 2>(name, [send.memory_space(), recv.memory_space()])?;
    let c_root = rank_below(name, "root", root, comm.size)?;
    let count = recv.len();
    let is_root = comm.rank == root;
    if is_root {
        long_enough(name, "root's send", send.len(), count, comm.size)?;
    }
    if comm.library().functions.ncclScatter.is_none() {
        return on.by_point_to_point("ncclScatterConfig", || {
            let receivers = if is_root { 0..comm.size } else { 0..0 };
            receivers.into_iter().try_for_each(|peer| {
                point_to_point(comm, Some(send.slice(peer * count, count)), None, peer, stream)
            })?;
            point_to_point(comm, None, Some(recv), root, stream)
        });
    }
    let (send, recv, data_type) = (send.as_raw(), recv.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: as in `reduce_scatter`; NCCL reads the send buffer on the root only.
    unsafe {
        call_with!(on, name, ncclScatter, ncclScatterConfig, (send, recv, count, data_type, c_root), stream)
    }
}

#[inline(always)]
pub(super) fn gather_in_place<T: Element>(
    on: Operations<'_>,
    buffer: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = on.communicator;
    if comm.rank != root {
        return gather(on, buffer.part(0, 1), buffer.slice_mut(0, 0), root, stream);
    }
    divisible("gather_in_place", "", buffer.len(), comm.size)?;
    gather(on, buffer.part(root, comm.size), buffer, root, stream)
}

#[inline(always)]
pub(super) fn scatter_in_place<T: Element>(
    on: Operations<'_>,
    buffer: DeviceSliceMut<'_, T>,
    root: usize,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let comm = on.communicator;
    if comm.rank != root {
        return scatter(on, buffer.part(0, 1).slice(0, 0), buffer, root, stream);
    }
    divisible("scatter_in_place", "", buffer.len(), comm.size)?;
    scatter(on, buffer.part(0, 1), buffer.part_mut(root, comm.size), root, stream)
}

impl Operations<'_> {
    /// The options in C.
    #[inline(always)]
    fn raw_config(self, call: &'static str) -> Result<Option<RawCollectiveConfig>> {
        self.config.map_or(Ok(None), |config| self.make_raw_config(config, call))
    }

    #[inline(never)]
    fn make_raw_config(
        self,
        config: &CollectiveConfig,
        call: &'static str,
    ) -> Result<Option<RawCollectiveConfig>> {
        if config.is_default() {
            return Ok(None);
        }
        let library = self.communicator.library();
        let raw = config.to_raw(call, library.version, &library.backend.to_string())?;
        match self.group {
            Some(group) => group.keep(&raw),
            None => *self.communicator.options.borrow_mut() = Some(raw.clone()),
        }
        Ok(Some(raw))
    }

    /// What `messages` sends and receives, as one operation, on a library that has none for it.
    fn by_point_to_point(
        self,
        configured: &'static str,
        messages: impl FnOnce() -> Result<()>,
    ) -> Result<ResultCode> {
        let library = self.communicator.library();
        if self.config.is_some_and(|config| !config.is_default()) {
            // Absent, as the plain function is.
            return library.function::<()>(configured, None).map(|()| ResultCode::SUCCESS);
        }
        // SAFETY: takes nothing. Inside another group this only counts.
        unsafe { call!(library, ncclGroupStart()) }?;
        let sent = messages();
        // SAFETY: takes nothing; ends the group that was started above. After a failed call it starts nothing.
        let ended = unsafe { call!(library, ncclGroupEnd()) };
        sent.and(ended)
    }
}

/// One message of an operation that is made of several; the caller has checked everything.
fn point_to_point<T: Element>(
    comm: &Communicator,
    send: Option<DeviceSlice<'_, T>>,
    recv: Option<DeviceSliceMut<'_, T>>,
    peer: usize,
    stream: StreamRef<'_>,
) -> Result<()> {
    let peer = rank_below("send", "peer", peer, comm.size)?;
    let (data_type, raw, stream) = (T::DATA_TYPE.as_raw(), comm.raw(), stream.as_raw());
    let send: Option<(*const c_void, usize)> = send.map(|send| (send.as_raw(), send.len()));
    let recv: Option<(*mut c_void, usize)> = recv.map(|recv| (recv.as_raw(), recv.len()));
    // SAFETY: as in `all_reduce`.
    unsafe {
        if let Some((buffer, count)) = send {
            call!(comm.library(), ncclSend(buffer, count, data_type, peer, raw, stream))?;
        }
        if let Some((buffer, count)) = recv {
            call!(comm.library(), ncclRecv(buffer, count, data_type, peer, raw, stream))?;
        }
    }
    Ok(())
}

impl Communicator {
    /// Host memory for a GPU, or device memory for the CPU implementation, cannot be right; nor an element type
    /// that the library has never heard of.
    #[inline]
    pub(super) fn accepts<T: Element, const N: usize>(
        &self,
        call: &'static str,
        buffers: [Option<MemorySpace>; N],
    ) -> Result<()> {
        T::DATA_TYPE.require(self.library())?;
        let own = self.memory_space();
        match buffers.into_iter().flatten().find(|space| *space != own) {
            Some(space) => Err(wrong_memory(call, space, own)),
            None => Ok(()),
        }
    }
}

#[cold]
fn wrong_memory(call: &'static str, space: MemorySpace, own: MemorySpace) -> Error {
    Error::argument(call, format!("a buffer is in {space} memory; the communicator works on {own} memory"))
}

/// `count` elements times `ranks`, or which buffer is too short for what.
#[inline]
fn long_enough(call: &'static str, buffer: &str, holds: usize, count: usize, ranks: usize) -> Result<()> {
    match count.checked_mul(ranks) {
        Some(needs) if needs <= holds => Ok(()),
        needs => Err(too_short(call, buffer, holds, needs, (count, ranks))),
    }
}

#[cold]
fn too_short(
    call: &'static str,
    buffer: &str,
    holds: usize,
    needs: Option<usize>,
    (count, ranks): (usize, usize),
) -> Error {
    let needs = needs.map_or_else(|| "more than there can be".into(), |needs| needs.to_string());
    let why = if ranks == 1 { String::new() } else { format!(", {ranks} ranks times {count}") };
    Error::argument(call, format!("the {buffer} buffer holds {holds} elements, and needs {needs}{why}"))
}

fn divisible(call: &'static str, buffer: &str, holds: usize, size: usize) -> Result<()> {
    if holds.is_multiple_of(size) {
        return Ok(());
    }
    Err(Error::argument(
        call,
        format!("the {buffer}buffer's {holds} elements are not a multiple of {size}, the ranks"),
    ))
}

//! The operations with one count: the check of their arguments, which their rows of the table describe, and the calls into C.

use super::call::{Call, Checked};
use super::message;
use crate::backend::call;
use crate::buffer::RawSlice;
use crate::communicator::{Communicator, check_buffers, check_divisible, check_length, to_c_rank};
use crate::{Error, Extent, InvalidArgumentKind, Operation, Result, ResultCode};

/// Checks the arguments as the operation's row says, and returns the buffers as this rank uses them.
#[inline(always)]
pub(super) fn check(operation: &'static Operation, call: &Call<'_>) -> Result<Checked> {
    let Call { communicator, arguments, .. } = *call;
    let (name, size) = (operation.name, communicator.size());
    let is_by_send = operation.is_counted_by_send() && !operation.is_in_place;
    let data_type = if is_by_send { call.send.data_type() } else { call.recv.data_type() };
    check_buffers(communicator, name, data_type, [call.send.memory_space(), call.recv.memory_space()])?;
    arguments.operator.require(communicator.library())?;
    let (mut is_root, mut ranks) = (false, [0; 2]);
    if let [Some(rank), _] = arguments.ranks {
        let what = if operation.is_message() { "peer" } else { "root" };
        ranks[0] = to_c_rank(name, what, rank, size)?;
        is_root = communicator.rank() == rank;
    }
    let (is_sender, is_receiver) = (operation.is_sender(is_root), operation.is_receiver(is_root));

    let mut buffers = Checked { send: call.send, recv: call.recv, count: 0, ranks };
    if operation.is_in_place {
        let buffer = call.recv;
        let is_divided = operation.sends == Extent::CountPerRank && is_sender
            || operation.receives == Extent::CountPerRank && is_receiver;
        let mut own = buffer;
        if is_divided {
            check_divisible(name, "", buffer.len(), size)?;
            own = buffer.part(communicator.rank(), size);
        }
        let side = |extent, is_used| match extent {
            Extent::CountPerRank if is_used => buffer,
            Extent::CountPerRank => buffer.slice(0, 0),
            _ => own,
        };
        buffers.send = side(operation.sends, is_sender);
        buffers.recv = side(operation.receives, is_receiver);
    }

    // One buffer gives the count; the other one, if this rank uses it, has as many elements as that demands.
    let Checked { send, recv, .. } = buffers;
    let is_by_send = operation.is_counted_by_send();
    let (length, extent, other, other_extent, is_other_used) = if is_by_send {
        (send.len(), operation.sends, recv.len(), operation.receives, is_receiver)
    } else {
        (recv.len(), operation.receives, send.len(), operation.sends, is_sender)
    };
    buffers.count = match extent {
        Extent::CountPerRank => {
            check_divisible(name, "send ", length, size)?;
            length / size
        }
        Extent::One if length == 0 => return Err(empty_buffer(name)),
        Extent::One => 1,
        _ => length,
    };
    let other_name = match (is_by_send, operation.has_root()) {
        (true, true) => "root's receive",
        (true, false) => "receive",
        (false, true) => "root's send",
        (false, false) => "send",
    };
    match other_extent {
        Extent::CountPerRank if is_other_used => {
            check_length(name, other_name, other, buffers.count, size)?;
        }
        Extent::Count if is_other_used => check_length(name, other_name, other, buffers.count, 1)?,
        _ => {}
    }
    Ok(buffers)
}

#[cold]
fn empty_buffer(call: &'static str) -> Error {
    Error::argument(call, InvalidArgumentKind::Length, "the buffer is empty; expected one element")
}

/// Calls the plain function, or its form with options if there are any, with the communicator and the stream after the other
/// arguments; for use in an `unsafe` block.
macro_rules! call_with {
    ($call:ident, $plain:ident or $configured:ident($($argument:expr),*)) => {{
        let (library, raw) = ($call.communicator.library(), $call.communicator.raw());
        let stream = $call.stream.as_raw();
        match $call.config {
            None => call!(library, $plain($($argument,)* raw, stream)),
            Some(config) => call!(library, $configured($($argument,)* raw, stream, config.as_ptr())),
        }
    }};
}
pub(super) use call_with;

#[inline(always)]
pub(super) fn all_reduce(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, .. } = *checked;
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    let op = call.arguments.operator.as_raw();
    // SAFETY: both buffers hold `count` elements in the communicator's memory, as was checked; the creator of the views
    // guarantees that they live long enough. The communicator is live, as the caller has entered NCCL.
    unsafe { call_with!(call, ncclAllReduce or ncclAllReduceConfig(from, to, count, data_type, op)) }
}

#[inline(always)]
pub(super) fn broadcast(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = *checked;
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    // SAFETY: as in `all_reduce`; NCCL reads the send buffer on the root only.
    unsafe { call_with!(call, ncclBroadcast or ncclBroadcastConfig(from, to, count, data_type, root)) }
}

#[inline(always)]
pub(super) fn reduce(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = *checked;
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    let op = call.arguments.operator.as_raw();
    // SAFETY: as in `all_reduce`; NCCL writes the receive buffer on the root only.
    unsafe { call_with!(call, ncclReduce or ncclReduceConfig(from, to, count, data_type, op, root)) }
}

#[inline(always)]
pub(super) fn all_gather(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, .. } = *checked;
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    // SAFETY: as in `all_reduce`, with `count` elements from each rank in the receive buffer.
    unsafe { call_with!(call, ncclAllGather or ncclAllGatherConfig(from, to, count, data_type)) }
}

#[inline(always)]
pub(super) fn reduce_scatter(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, .. } = *checked;
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    let op = call.arguments.operator.as_raw();
    // SAFETY: as in `all_reduce`, with `count` elements for each rank in the send buffer.
    unsafe { call_with!(call, ncclReduceScatter or ncclReduceScatterConfig(from, to, count, data_type, op)) }
}

#[inline(always)]
pub(super) fn all_to_all(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, .. } = *checked;
    if call.communicator.library().functions.ncclAlltoAll.is_none() {
        return exchange_parts(*call, *checked);
    }
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    // SAFETY: as in `all_reduce`, with `count` elements for each rank in both buffers.
    unsafe { call_with!(call, ncclAlltoAll or ncclAlltoAllConfig(from, to, count, data_type)) }
}

#[inline(always)]
pub(super) fn gather(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = *checked;
    if call.communicator.library().functions.ncclGather.is_none() {
        return gather_parts(*call, *checked);
    }
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    // SAFETY: as in `all_gather`; NCCL writes the receive buffer on the root only.
    unsafe { call_with!(call, ncclGather or ncclGatherConfig(from, to, count, data_type, root)) }
}

#[inline(always)]
pub(super) fn scatter(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = *checked;
    if call.communicator.library().functions.ncclScatter.is_none() {
        return scatter_parts(*call, *checked);
    }
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    // SAFETY: as in `reduce_scatter`; NCCL reads the send buffer on the root only.
    unsafe { call_with!(call, ncclScatter or ncclScatterConfig(from, to, count, data_type, root)) }
}

/// Performs [`all_to_all`] with messages, for a library that lacks it.
#[cold]
fn exchange_parts(call: Call<'_>, checked: Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, .. } = checked;
    together(call, || {
        let parts = parts(call.communicator, send, count).zip(parts(call.communicator, recv, count));
        for ((peer, send), (_, recv)) in parts {
            message::send(&call, &send, peer)?;
            message::recv(&call, &recv, peer)?;
        }
        Ok(ResultCode::SUCCESS)
    })
}

/// Performs [`gather`] with messages, for a library that lacks it.
#[cold]
fn gather_parts(call: Call<'_>, checked: Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = checked;
    together(call, || {
        let sent = message::send(&call, &send, root)?;
        if call.arguments.ranks[0] == Some(call.communicator.rank()) {
            for (peer, recv) in parts(call.communicator, recv, count) {
                message::recv(&call, &recv, peer)?;
            }
        }
        Ok(sent)
    })
}

/// Performs [`scatter`] with messages, for a library that lacks it.
#[cold]
fn scatter_parts(call: Call<'_>, checked: Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = checked;
    together(call, || {
        if call.arguments.ranks[0] == Some(call.communicator.rank()) {
            for (peer, send) in parts(call.communicator, send, count) {
                message::send(&call, &send, peer)?;
            }
        }
        message::recv(&call, &recv, root)
    })
}

/// Runs `messages` as one operation, for a library that lacks the operation, and so its form with options.
fn together(call: Call<'_>, messages: impl FnOnce() -> Result<ResultCode>) -> Result<ResultCode> {
    let library = call.communicator.library();
    if let (Some(_), Some(function)) = (call.config, call.operation.function_with_config) {
        library.function::<()>(function, None)?;
    }
    message::together(library, messages)
}

/// Returns the ranks with their numbers in C, and the part of each in a buffer.
fn parts(comm: &Communicator, buffer: RawSlice, count: usize) -> impl Iterator<Item = (i32, RawSlice)> {
    (0..).zip(0..comm.size()).map(move |(c_rank, rank)| (c_rank, buffer.slice(rank * count, count)))
}

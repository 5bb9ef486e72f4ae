//! The operations with one count: the calls into C.
#![allow(unsafe_code)] // Calls C.

use super::call::{Call, Checked};
use super::grouping::Start;
use super::message;
use super::table::Collective;
use crate::backend::call;
use crate::buffer::RawSlice;
use crate::config::RawCollectiveConfig;
use crate::{Communicator, Result, ResultCode};

/// Calls the plain function, or its form with options if there are any, with the communicator and the stream after the other
/// arguments; for use in an `unsafe` block.
macro_rules! call_with {
    ($call:ident, $start:ident, $plain:ident or $configured:ident $arguments:tt) => {
        match $call.config {
            None => call_configured!($call, None, $plain or $configured $arguments),
            Some(config) => {
                let config = $call.raw_config($start, config)?;
                call_configured!($call, config.as_ref(), $plain or $configured $arguments)
            }
        }
    };
}

/// Calls as [`call_with`] does, with these options.
macro_rules! call_configured {
    ($call:ident, $config:expr, $plain:ident or $configured:ident($($argument:expr),*)) => {{
        let (library, raw) = ($call.communicator.library(), $call.communicator.raw());
        let stream = $call.stream.as_raw();
        match $config.map(RawCollectiveConfig::as_ptr) {
            None => call!(library, $plain($($argument,)* raw, stream)),
            Some(config) => call!(library, $configured($($argument,)* raw, stream, config)),
        }
    }};
}
pub(super) use call_configured;

/// Calls the function of a collective; NCCL has been entered.
#[inline(always)]
pub(super) fn enqueue(
    kind: Collective,
    call: &Call<'_>,
    start: Start<'_>,
    checked: &Checked,
) -> Result<ResultCode> {
    match kind {
        Collective::AllReduce => all_reduce(call, start, checked),
        Collective::Broadcast => broadcast(call, start, checked),
        Collective::Reduce => reduce(call, start, checked),
        Collective::AllGather => all_gather(call, start, checked),
        Collective::ReduceScatter => reduce_scatter(call, start, checked),
        Collective::AllToAll => all_to_all(call, start, checked),
        Collective::Gather => gather(call, start, checked),
        Collective::Scatter => scatter(call, start, checked),
    }
}

#[inline(always)]
fn all_reduce(call: &Call<'_>, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, .. } = *checked;
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    let op = call.arguments.operator.as_raw();
    // SAFETY: both buffers hold `count` elements in the communicator's memory, as was checked; the creator of the views
    // guarantees that they live long enough. The communicator is live, as the caller has entered NCCL.
    unsafe { call_with!(call, start, ncclAllReduce or ncclAllReduceConfig(from, to, count, data_type, op)) }
}

#[inline(always)]
fn broadcast(call: &Call<'_>, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = *checked;
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    // SAFETY: as in `all_reduce`; NCCL reads the send buffer on the root only.
    unsafe { call_with!(call, start, ncclBroadcast or ncclBroadcastConfig(from, to, count, data_type, root)) }
}

#[inline(always)]
fn reduce(call: &Call<'_>, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = *checked;
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    let op = call.arguments.operator.as_raw();
    // SAFETY: as in `all_reduce`; NCCL writes the receive buffer on the root only.
    unsafe { call_with!(call, start, ncclReduce or ncclReduceConfig(from, to, count, data_type, op, root)) }
}

#[inline(always)]
fn all_gather(call: &Call<'_>, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, .. } = *checked;
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    // SAFETY: as in `all_reduce`, with `count` elements from each rank in the receive buffer.
    unsafe { call_with!(call, start, ncclAllGather or ncclAllGatherConfig(from, to, count, data_type)) }
}

#[inline(always)]
fn reduce_scatter(call: &Call<'_>, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, .. } = *checked;
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    let op = call.arguments.operator.as_raw();
    // SAFETY: as in `all_reduce`, with `count` elements for each rank in the send buffer.
    unsafe {
        call_with!(call, start, ncclReduceScatter or ncclReduceScatterConfig(from, to, count, data_type, op))
    }
}

#[inline(always)]
fn all_to_all(call: &Call<'_>, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, .. } = *checked;
    if call.communicator.library().functions.ncclAlltoAll.is_none() {
        return exchange_parts(*call, *checked);
    }
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    // SAFETY: as in `all_reduce`, with `count` elements for each rank in both buffers.
    unsafe { call_with!(call, start, ncclAlltoAll or ncclAlltoAllConfig(from, to, count, data_type)) }
}

#[inline(always)]
fn gather(call: &Call<'_>, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = *checked;
    if call.communicator.library().functions.ncclGather.is_none() {
        return gather_parts(*call, *checked);
    }
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    // SAFETY: as in `all_gather`; NCCL writes the receive buffer on the root only.
    unsafe { call_with!(call, start, ncclGather or ncclGatherConfig(from, to, count, data_type, root)) }
}

#[inline(always)]
fn scatter(call: &Call<'_>, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = *checked;
    if call.communicator.library().functions.ncclScatter.is_none() {
        return scatter_parts(*call, *checked);
    }
    let (from, to) = (send.as_raw(), recv.as_raw().cast_mut());
    let data_type = recv.data_type().as_raw();
    // SAFETY: as in `reduce_scatter`; NCCL reads the send buffer on the root only.
    unsafe { call_with!(call, start, ncclScatter or ncclScatterConfig(from, to, count, data_type, root)) }
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
    if let (Some(config), Some(function)) = (call.config, call.operation.function_with_config)
        && !config.is_default()
    {
        library.function::<()>(function, None)?;
    }
    message::together(library, messages)
}

/// Returns the ranks with their numbers in C, and the part of each in a buffer.
fn parts(comm: &Communicator, buffer: RawSlice, count: usize) -> impl Iterator<Item = (i32, RawSlice)> {
    (0..).zip(0..comm.size()).map(move |(c_rank, rank)| (c_rank, buffer.slice(rank * count, count)))
}

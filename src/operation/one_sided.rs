//! One-sided operations: the checks of their arguments, and the calls into C.
#![allow(unsafe_code)] // Calls C.

use std::ptr;
use std::sync::Arc;

use super::arguments::Arguments;
use super::call::{Call, Checked};
use super::check::{check_buffers, to_c_int, to_c_length, to_c_rank};
use super::grouping::Start;
use super::signal::WaitSignal;
use super::window_offset::Target;
use crate::backend::call;
use crate::{Error, InvalidArgumentKind, Result, ResultCode, sys};

pub(super) fn check_put(call: &Call<'_>) -> Result<Checked> {
    let Call { operation, communicator, send: local, arguments, .. } = *call;
    let name = operation.name;
    check_buffers(communicator, name, local.data_type(), [local.memory_space()], ["the send buffer"])?;
    let checked = check_signal(call)?;
    let count = local.len();
    let Some(Target { shared, window, length, offset }) = arguments.target else {
        return Err(Error::usage(name, "there is no window"));
    };
    if !ptr::eq(shared, &**communicator.shared()) {
        let problem = "the window belongs to another communicator";
        return Err(Error::argument(name, InvalidArgumentKind::Communicator, problem));
    }
    if offset.checked_add(count).is_none_or(|end| end > length) {
        let problem = format!("{count} elements from {offset} on are beyond the window's {length}");
        return Err(Error::argument(name, InvalidArgumentKind::Length, problem));
    }
    if window.is_null() {
        return Err(Error::usage(name, "the window is not active"));
    }
    Ok(Checked { send: local, count, ..checked })
}

pub(super) fn check_signal(call: &Call<'_>) -> Result<Checked> {
    let Call { operation, communicator, arguments, .. } = *call;
    let peer = arguments.ranks[0].unwrap_or_default();
    let peer = to_c_rank(operation.name, "peer", peer, communicator.size())?;
    arguments.signal.to_raw(operation.name)?;
    Ok(Checked { ranks: [peer, 0], ..Checked::NONE })
}

pub(super) fn check_wait(call: &Call<'_>) -> Result<Checked> {
    let Call { operation, communicator, arguments: Arguments { signals, .. }, .. } = *call;
    let name = operation.name;
    if signals.is_empty() {
        return Err(Error::argument(name, InvalidArgumentKind::Length, "no signals; expected at least one"));
    }
    for wait in signals {
        to_c_rank(name, "peer", wait.peer as usize, communicator.size())?;
        wait.signal.to_raw(name)?;
        if to_c_int(name, "count", wait.count)? == 0 {
            let problem = "the count is 0; expected at least 1";
            return Err(Error::argument(name, InvalidArgumentKind::Value, problem));
        }
    }
    to_c_length(name, signals.len(), "signals").map(|_| Checked::NONE)
}

pub(super) fn put(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Call { operation, communicator: comm, arguments, stream, .. } = *call;
    let Checked { send: local, count, ranks: [peer, _], .. } = *checked;
    let (index, context) = arguments.signal.to_raw(operation.name)?;
    let Some(Target { window, offset, .. }) = arguments.target else { return Ok(ResultCode::SUCCESS) };
    let (raw, stream, bytes) = (comm.raw(), stream.as_raw(), offset * local.data_type().size());
    let (local, data_type) = (local.as_raw(), local.data_type().as_raw());
    // SAFETY: the creator of the view guarantees that it holds `count` elements and lives long enough. The window
    // belongs to this live communicator, and the elements fit into it, also on the peer, as whoever registered the window
    // guarantees that all parts have the same size. The peer's part exists until its `assume_idle` promises that this
    // call is not made, or on host memory, until the CPU implementation refuses it.
    unsafe {
        let library = comm.library();
        call!(
            library,
            ncclPutSignal(local, count, data_type, peer, window, bytes, index, context, 0, raw, stream)
        )
    }
}

pub(super) fn signal(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Call { operation, communicator: comm, arguments, stream, .. } = *call;
    let ((index, context), [peer, _]) = (arguments.signal.to_raw(operation.name)?, checked.ranks);
    // SAFETY: a live communicator.
    unsafe { call!(comm.library(), ncclSignal(peer, index, context, 0, comm.raw(), stream.as_raw())) }
}

pub(super) fn wait(call: &Call<'_>, start: Start<'_>) -> Result<ResultCode> {
    let Call { operation, communicator: comm, arguments: Arguments { signals, .. }, stream, .. } = *call;
    let count = to_c_length(operation.name, signals.len(), "signals")?;
    // NCCL may read the array until the end of the group. (An `Arc`, as moving a `Box` invalidates pointers into it.)
    let signals: Arc<[WaitSignal]> = signals.into();
    let array = signals.as_ptr().cast::<sys::ncclWaitSignalDesc_t>().cast_mut();
    let _kept = start.keep_arguments(signals);
    // SAFETY: `count` entries with C's layout, as the assertions above check, which NCCL only reads. They live until
    // the operation is started: here, or in the group.
    unsafe { call!(comm.library(), ncclWaitSignal(count, array, comm.raw(), stream.as_raw())) }
}

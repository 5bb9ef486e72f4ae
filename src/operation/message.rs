//! Messages, alone and together: the check of an exchange, and the calls into C.
#![allow(unsafe_code)] // Calls C.

use super::call::{Call, Checked};
use super::check::{buffer_names, check_buffers, check_own_exchange, to_c_rank};
use crate::backend::{Library, call};
use crate::buffer::RawSlice;
use crate::{Result, ResultCode};

pub(super) fn check_exchange(call: &Call<'_>) -> Result<Checked> {
    let Call { operation, communicator, send, recv, .. } = *call;
    let name = operation.name;
    let spaces = [send.memory_space(), recv.memory_space()];
    check_buffers(communicator, name, send.data_type(), spaces, buffer_names(operation))?;
    let [destination, source] = call.arguments.ranks.map(Option::unwrap_or_default);
    let ranks = [
        to_c_rank(name, "destination", destination, communicator.size())?,
        to_c_rank(name, "source", source, communicator.size())?,
    ];
    if [destination, source] == [communicator.rank(); 2] {
        check_own_exchange(name, send.len(), recv.len(), "it receives")?;
    }
    Ok(Checked { send, recv, count: 0, ranks })
}

pub(super) fn exchange(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let Checked { send: sent, recv: received, ranks: [destination, source], .. } = checked;
    together(call.communicator.library(), || {
        send(call, sent, *destination)?;
        recv(call, received, *source)
    })
}

/// Runs `calls` as one operation, in a group of NCCL. Inside another group, this one only counts.
pub(super) fn together(library: &Library, calls: impl FnOnce() -> Result<ResultCode>) -> Result<ResultCode> {
    // SAFETY: has no arguments.
    unsafe { call!(library, ncclGroupStart()) }?;
    let called = calls();
    // SAFETY: has no arguments; ends the group that was started above. After a failed call it starts nothing.
    let ended = unsafe { call!(library, ncclGroupEnd()) };
    called.and(ended)
}

/// Sends a message of a call that was checked.
#[inline(always)]
pub(super) fn send(call: &Call<'_>, buffer: &RawSlice, peer: i32) -> Result<ResultCode> {
    let (comm, from, stream) = (call.communicator, buffer.as_raw(), call.stream.as_raw());
    // SAFETY: the creator of the view guarantees that it holds `len()` elements and lives long enough; it is in the
    // communicator's memory, as was checked. The communicator is live, as the caller has entered NCCL.
    unsafe {
        let data_type = buffer.data_type().as_raw();
        call!(comm.library(), ncclSend(from, buffer.len(), data_type, peer, comm.raw(), stream))
    }
}

/// Receives a message of a call that was checked.
#[inline(always)]
pub(super) fn recv(call: &Call<'_>, buffer: &RawSlice, peer: i32) -> Result<ResultCode> {
    let (comm, to, stream) = (call.communicator, buffer.as_raw().cast_mut(), call.stream.as_raw());
    // SAFETY: as in `send`.
    unsafe {
        let data_type = buffer.data_type().as_raw();
        call!(comm.library(), ncclRecv(to, buffer.len(), data_type, peer, comm.raw(), stream))
    }
}

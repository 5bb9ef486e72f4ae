//! The check of operations with one count.

use super::call::{Call, Checked};
use crate::communicator::{check_buffers, check_divisible, check_length, to_c_rank};
use crate::{Error, Extent, InvalidArgumentKind, Operation, Result};

/// Checks the arguments as the operation's row says, and returns the buffers as this rank uses them.
#[inline(always)]
pub(super) fn check_by_row(operation: &'static Operation, call: &Call<'_>) -> Result<Checked> {
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

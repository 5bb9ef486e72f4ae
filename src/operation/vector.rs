//! The collectives with a count for each rank, which NCCL lacks: the check of their arguments, and the groups of NCCL's
//! operations that they consist of. Those of messages also stand in for collectives with one count that a library lacks.
//!
//! A count of 0 is no call: the rank at the other end has the same count, and makes none either.
#![allow(unsafe_code)] // Calls C.

use std::iter;

use super::arguments::Arguments;
use super::call::{Call, Checked};
use super::check::{
    buffer_names, check_buffers, check_length, check_own_count, check_own_exchange, sum_of_counts, to_c_rank,
};
use super::collective::call_configured;
use super::grouping::Start;
use super::message;
use super::table::CallKind;
use crate::buffer::RawSlice;
use crate::{Extent, Result, ResultCode};

/// Checks the arguments, and returns the buffers as this rank uses them.
///
/// The buffer with the parts of all ranks holds their sum, the other one has this rank's count. Only the root looks at the
/// counts, if there is one.
pub(super) fn check(call: &Call<'_>) -> Result<Checked> {
    let Call { operation, communicator, send, recv, arguments, .. } = *call;
    let (name, size, rank) = (operation.name, communicator.size(), communicator.rank());
    let spaces = [send.memory_space(), recv.memory_space()];
    check_buffers(communicator, name, recv.data_type(), spaces, buffer_names(operation))?;
    arguments.operator.require(communicator.library())?;
    let mut checked = Checked { send, recv, count: 0, ranks: [0; 2] };
    let mut is_root = true;
    if let [Some(root), _] = arguments.ranks {
        checked.ranks[0] = to_c_rank(name, "root", root, size)?;
        is_root = root == rank;
    }
    let [sent, received] = arguments.counts;
    match (operation.sends, operation.receives) {
        (Extent::Counts, Extent::Counts) => {
            let totals = [
                sum_of_counts(name, "send counts", sent, size)?,
                sum_of_counts(name, "receive counts", received, size)?,
            ];
            check_length(name, "send", send.len(), totals[0], 1)?;
            check_length(name, "receive", recv.len(), totals[1], 1)?;
            check_own_exchange(name, sent[rank], received[rank], "its receive counts have")?;
        }
        // One buffer with all parts, of which this rank's is one.
        _ if operation.is_in_place && is_root => {
            let buffer = if operation.has_root() { "root's" } else { "in-place" };
            let total = sum_of_counts(name, "counts", received, size)?;
            check_length(name, buffer, recv.len(), total, 1)?;
            let own = recv.slice(received[..rank].iter().sum(), received[rank]);
            if operation.sends == Extent::Counts {
                (checked.send, checked.recv) = (recv, own);
            } else {
                checked.send = own;
            }
        }
        // Only this rank's part.
        (sends, _) if operation.is_in_place => {
            let nothing = recv.slice(0, 0);
            if sends == Extent::Counts {
                checked.send = nothing;
            } else {
                (checked.send, checked.recv) = (recv, nothing);
            }
        }
        (sends, _) if is_root => {
            let (own, own_name, all, all_name) = match (sends == Extent::Counts, operation.has_root()) {
                (true, has_root) => {
                    (recv.len(), "receive", send.len(), if has_root { "root's send" } else { "send" })
                }
                (false, has_root) => {
                    (send.len(), "send", recv.len(), if has_root { "root's receive" } else { "receive" })
                }
            };
            let total = sum_of_counts(name, "counts", received, size)?;
            check_own_count(name, own_name, own, received[rank], rank)?;
            check_length(name, all_name, all, total, 1)?;
        }
        _ => {}
    }
    let own = if operation.sends == Extent::Counts { checked.recv } else { checked.send };
    checked.count = own.len();
    Ok(checked)
}

/// The part of a rank in a buffer that has the parts of all ranks, one after the other.
struct Part {
    rank: usize,
    c_rank: i32,
    elements: RawSlice,
}

/// Returns the `counts` of a call or, for a collective with one count, that for each rank.
fn each_count<'a>(
    call: &Call<'_>,
    checked: &Checked,
    counts: &'a [usize],
) -> impl Iterator<Item = usize> + use<'a> {
    let is_one = matches!(call.operation.call, CallKind::Collective(_));
    let ranks = if is_one { call.communicator.size() } else { 0 };
    counts.iter().copied().chain(iter::repeat_n(checked.count, ranks))
}

/// Makes a call for each part that is not empty, in rank order.
fn each_part(
    buffer: RawSlice,
    counts: impl Iterator<Item = usize>,
    call: impl FnMut(Part) -> Result<ResultCode>,
) -> Result<ResultCode> {
    let mut end = 0_usize;
    // There are no more ranks than an i32 can count, and the sum of the counts is no more than the buffer holds.
    let part = move |(c_rank, (rank, count)): (i32, (usize, usize))| {
        let start = end;
        end += count;
        Part { rank, c_rank, elements: buffer.slice(start, count) }
    };
    let parts = (0..).zip(counts.enumerate()).map(part);
    parts.filter(|part| part.elements.len() > 0).map(call).try_fold(ResultCode::SUCCESS, |_, called| called)
}

/// Makes a broadcast of each rank's part: a group of these is what NCCL recognizes as one operation, since 2.29.2.
pub(super) fn all_gather(call: &Call<'_>, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
    let Call { communicator, arguments: Arguments { counts: [_, counts], .. }, .. } = *call;
    let data_type = checked.recv.data_type().as_raw();
    let config = call.config.map_or(Ok(None), |config| call.raw_config(start, config))?;
    message::together(communicator.library(), || {
        each_part(checked.recv, counts.iter().copied(), |Part { rank, c_rank, elements }| {
            let from = if rank == communicator.rank() { checked.send.as_raw() } else { std::ptr::null() };
            let (to, count) = (elements.as_raw().cast_mut(), elements.len());
            // SAFETY: as in `collective::enqueue`: this rank's part has the length of the send buffer, and the receive
            // buffer holds all parts, as was checked.
            unsafe {
                call_configured!(call, config.as_ref(), ncclBroadcast or ncclBroadcastConfig(from, to, count, data_type, c_rank))
            }
        })
    })
}

/// Makes a reduction of each rank's part, with that rank as the root.
pub(super) fn reduce_scatter(call: &Call<'_>, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
    let Call { communicator, arguments: Arguments { counts: [_, counts], operator, .. }, .. } = *call;
    let (op, data_type) = (operator.as_raw(), checked.send.data_type().as_raw());
    let config = call.config.map_or(Ok(None), |config| call.raw_config(start, config))?;
    message::together(communicator.library(), || {
        each_part(checked.send, counts.iter().copied(), |Part { rank, c_rank, elements }| {
            let is_own = rank == communicator.rank();
            let to = if is_own { checked.recv.as_raw().cast_mut() } else { std::ptr::null_mut() };
            let (from, count) = (elements.as_raw(), elements.len());
            // SAFETY: as in `collective::enqueue`: the send buffer holds all parts, and this rank's part has the length of
            // the receive buffer, as was checked.
            unsafe {
                call_configured!(call, config.as_ref(), ncclReduce or ncclReduceConfig(from, to, count, data_type, op, c_rank))
            }
        })
    })
}

pub(super) fn all_to_all(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let [sent, received] = call.arguments.counts.map(|counts| each_count(call, checked, counts));
    message::together(call.communicator.library(), || {
        each_part(checked.send, sent, |part| message::send(call, &part.elements, part.c_rank))?;
        each_part(checked.recv, received, |part| message::recv(call, &part.elements, part.c_rank))
    })
}

/// Sends this rank's part to the root, which receives all parts but one that is there already.
pub(super) fn gather(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let (root, is_in_place) = (call.arguments.ranks[0], call.operation.is_in_place);
    let is_root = root == Some(call.communicator.rank());
    message::together(call.communicator.library(), || {
        if checked.send.len() > 0 && !(is_root && is_in_place) {
            message::send(call, &checked.send, checked.ranks[0])?;
        }
        let parts = if is_root { call.communicator.size() } else { 0 };
        let counts = each_count(call, checked, call.arguments.counts[1]).take(parts);
        each_part(checked.recv, counts, |part| match is_in_place && Some(part.rank) == root {
            true => Ok(ResultCode::SUCCESS),
            false => message::recv(call, &part.elements, part.c_rank),
        })
    })
}

/// Sends all parts from the root, but one that is there already, and receives this rank's.
pub(super) fn scatter(call: &Call<'_>, checked: &Checked) -> Result<ResultCode> {
    let (root, is_in_place) = (call.arguments.ranks[0], call.operation.is_in_place);
    let is_root = root == Some(call.communicator.rank());
    message::together(call.communicator.library(), || {
        let parts = if is_root { call.communicator.size() } else { 0 };
        let counts = each_count(call, checked, call.arguments.counts[1]).take(parts);
        let sent = each_part(checked.send, counts, |part| match is_in_place && Some(part.rank) == root {
            true => Ok(ResultCode::SUCCESS),
            false => message::send(call, &part.elements, part.c_rank),
        })?;
        if checked.recv.len() == 0 || is_root && is_in_place {
            return Ok(sent);
        }
        message::recv(call, &checked.recv, checked.ranks[0])
    })
}

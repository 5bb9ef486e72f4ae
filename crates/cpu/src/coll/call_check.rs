//! The check that all ranks made the same call, and as many collectives of count 0 before it.
//!
//! As in NCCL, a collective of count 0 returns at once, whatever the other ranks do. If only some ranks make it, their
//! later calls do not belong together any more, although they may look the same. So each rank counts those that it
//! skipped, and publishes the number with its next call.

use std::ops::Range;

use crate::coll::call_header::CallHeader;
use crate::diag::error::Error;
use crate::shm::shared_state::{EMPTY_CALLS, SharedState};

/// Returns what `rank` publishes of a call, for the others to compare.
#[inline]
pub(super) fn call_args(state: &SharedState, rank: usize, header: CallHeader) -> [u64; 2] {
    let [head, count] = header.encode();
    [head | state.last_empty_call(rank) & EMPTY_CALLS, count]
}

/// Returns the error of `rank` and `ranks`, which [did not all make](SharedState::all_made) the same call.
#[cold]
#[inline(never)]
pub(super) fn difference(state: &SharedState, rank: usize, step: u64, ranks: Range<usize>) -> Error {
    let first = ranks.start;
    let mut others = ranks.chain([rank]);
    let differs = |other: &usize| state.call_args(*other, step) != state.call_args(first, step);
    let other = others.find(differs).unwrap_or(rank);
    let call = |rank| {
        let [head, count] = state.call_args(rank, step);
        CallHeader::decode([head & !EMPTY_CALLS, count])
    };
    let mistake = describe_empty_calls(state, step, first, other)
        .unwrap_or_else(|| call(first).describe_difference(call(other)));
    Error::usage(format!(
        "{mistake}: rank {other} called {}, rank {first} called {}",
        call(other),
        call(first)
    ))
}

/// Describes the collectives of count 0 that one of two ranks has made and the other has not.
fn describe_empty_calls(state: &SharedState, step: u64, one: usize, two: usize) -> Option<String> {
    let number = |rank| (state.call_args(rank, step)[0] >> EMPTY_CALLS.trailing_zeros()) as u8;
    let surplus = number(one).wrapping_sub(number(two)) as i8;
    let (more, less) = if surplus > 0 { (one, two) } else { (two, one) };
    let calls = match surplus.unsigned_abs() {
        0 => return None,
        1 => "1 collective".into(),
        many => format!("{many} collectives"),
    };
    let last = state.last_empty_call(more);
    // It may have made more since.
    let is_known = (last ^ state.call_args(more, step)[0]) & EMPTY_CALLS == 0;
    let last =
        is_known.then(|| format!(", the last of them {}", CallHeader::decode([last & !EMPTY_CALLS, 0])));
    Some(format!(
        "before this call, rank {more} made {calls} of count 0 that rank {less} did not make{}",
        last.unwrap_or_default()
    ))
}

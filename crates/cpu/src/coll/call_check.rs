//! The check that all ranks made the same call, and the same calls before it.
//!
//! As in NCCL, a collective of count 0 returns at once, whatever the other ranks do. If only some ranks make it, their
//! later calls do not belong together any more, although they may look the same. So each rank counts those that it
//! skipped, and publishes the number with its next call.
//!
//! In a short collective with a root, a rank may wait for nobody, or for one rank only, and so compares with no other. It
//! publishes a digest of these calls with the next ones, and compares it at the latest [when it leaves](leaving).

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use crate::coll::call_header::CallHeader;
use crate::diag::error::Error;
use crate::diag::finding::Finding;
use crate::shm::shared_state::{EARLIER_CALLS, EMPTY_CALLS, SharedState, UNAWAITED};
use crate::sync::primitive::fence;

/// Steps whose records may still be there when a later one is.
const KNOWN_STEPS: u64 = 7;

/// Returns what `rank` publishes of a call, for the others to compare.
#[inline]
pub(crate) fn call_args(state: &SharedState, rank: usize, header: CallHeader) -> [u64; 2] {
    let [head, count] = header.encode();
    [head | state.earlier_calls(rank) & EARLIER_CALLS, count]
}

/// Returns the error of `rank` and `ranks`, which [did not all make](SharedState::all_made) the same call.
#[cold]
#[inline(never)]
pub(crate) fn difference(state: &SharedState, rank: usize, step: u64, ranks: Range<usize>) -> Error {
    let (first, are_all) = (ranks.start, ranks.len() == state.ranks());
    let mut others = ranks.chain([rank]);
    let differs = |other: &usize| state.call_args(*other, step) != state.call_args(first, step);
    let other = others.find(differs).unwrap_or(rank);
    let args = |rank| state.call_args(rank, step);
    let ([one, _], [two, _]) = (args(first), args(other));
    let differed = (one ^ two) & UNAWAITED != 0;
    let mistake = describe_empty_calls(state, step, first, other)
        .or_else(|| {
            differed
                .then(|| format!("before this call, {}", describe_unawaited(state, step - 1, first, other)))
        })
        .unwrap_or_else(|| decode(args(first)).describe_difference(decode(args(other))));
    if are_all {
        state.forget_unawaited_calls(rank);
    }
    Error::usage(format!(
        "{mistake}: rank {other} called {}, rank {first} called {}",
        decode(args(other)),
        decode(args(first))
    ))
}

fn decode([head, count]: [u64; 2]) -> CallHeader {
    CallHeader::decode([head & !EARLIER_CALLS, count])
}

/// Describes the first of the calls up to that of `step` in which two ranks differed without noticing.
fn describe_unawaited(state: &SharedState, step: u64, one: usize, two: usize) -> String {
    find_unawaited(state, step, one, two).map_or_else(
        || format!("rank {one} and rank {two} called different functions"),
        |(of_one, of_two)| format!("rank {two} called {of_two}, and rank {one} {of_one}"),
    )
}

/// Returns the first of the calls up to the one of `step` in which two ranks differed without noticing, if it is still known.
fn find_unawaited(
    state: &SharedState,
    step: u64,
    one: usize,
    two: usize,
) -> Option<(CallHeader, CallHeader)> {
    let calls = |step| {
        let call = |rank| Some(decode(state.known_call_args(rank, step)?));
        Some((call(one)?, call(two)?))
    };
    let mut known = (step.saturating_sub(KNOWN_STEPS) + 1..=step).filter_map(calls);
    known.find(|(of_one, of_two)| of_one != of_two)
}

/// Checks, as `rank` leaves, that no rank has made a call that it did not make, and, of ranks that have left before, that they
/// made the same ones. What the others are yet to do they compare themselves.
///
/// Returns the mistake with its kind, or `None`.
pub(crate) fn leaving(state: &SharedState, rank: usize) -> Option<(Finding, String)> {
    // Of two ranks that leave at the same time, at least one sees that of the other.
    fence(SeqCst);
    let own = state.begun_steps(rank);
    for other in (0..state.ranks()).filter(|other| *other != rank) {
        let (has_left, steps) = (state.has_left(other), state.begun_steps(other));
        let missing = |lacks: usize, made: usize| {
            let (call, _) = state.last_call(made);
            format!(
                "rank {lacks} has left without a call of rank {made}, which called {} last",
                CallHeader::decode(call)
            )
        };
        if steps > own {
            return Some((Finding::MissingCall, missing(rank, other)));
        }
        if has_left && steps < own {
            return Some((Finding::MissingCall, missing(other, rank)));
        }
        if has_left && (state.earlier_calls(rank) ^ state.earlier_calls(other)) & UNAWAITED != 0 {
            let text = match find_unawaited(state, own, other, rank) {
                Some((others, own)) => format!(
                    "{}: rank {rank} called {own}, rank {other} called {others}",
                    others.describe_difference(own)
                ),
                None => format!("rank {other} and rank {rank} called different functions"),
            };
            return Some((Finding::DifferentCalls, text));
        }
    }
    None
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
    let last = state.earlier_calls(more);
    // It may have made more since.
    let is_known = (last ^ state.call_args(more, step)[0]) & EMPTY_CALLS == 0;
    let last = is_known.then(|| format!(", the last of them {}", decode([last, 0])));
    Some(format!(
        "before this call, rank {more} made {calls} of count 0 that rank {less} did not make{}",
        last.unwrap_or_default()
    ))
}

//! The check that all ranks made the same call.

use std::ops::Range;

use crate::coll::call_header::CallHeader;
use crate::diag::error::{Error, Result};
use crate::shm::shared_state::SharedState;

/// Compares what `ranks`, which `rank` has waited for, called in `step`. If these are all ranks, every rank sees the
/// same and comes to the same result.
pub(super) fn check(state: &SharedState, rank: usize, step: u64, ranks: Range<usize>) -> Result {
    let own = state.call_args(rank, step);
    if ranks.clone().all(|other| other == rank || state.call_args(other, step) == own) {
        return Ok(());
    }
    let (first, call) = (ranks.start, |rank| CallHeader::decode(state.call_args(rank, step)));
    let mut others = ranks.chain([rank]);
    let differs = |other: &usize| state.call_args(*other, step) != state.call_args(first, step);
    let other = others.find(differs).unwrap_or(rank);
    Err(Error::usage(format!(
        "the ranks called different functions: rank {other} called {}, rank {first} called {}",
        call(other),
        call(first)
    )))
}

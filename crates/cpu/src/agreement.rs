//! What all ranks have to call alike, in two words, and the comparison.

use std::ops::Range;

use crate::collective;
use crate::exchange;
use crate::failure::{Failure, Result};
use crate::world::World;

/// Compares what `heard`, the ranks that `rank` waited for, said with `step`. If these are all ranks, they all see the
/// same and come to the same result.
pub(crate) fn check(world: &World, rank: usize, step: u64, heard: Range<usize>) -> Result {
    let own = world.common(rank, step);
    if heard.clone().all(|other| other == rank || world.common(other, step) == own) {
        return Ok(());
    }
    let (first, tell) = (heard.start, |rank| tell(world.common(rank, step)));
    let mut others = heard.chain([rank]);
    let other = others.find(|other| world.common(*other, step) != world.common(first, step)).unwrap_or(rank);
    Err(Failure::usage(format!(
        "the ranks called different functions: rank {other} called {}, rank {first} called {}",
        tell(other),
        tell(first)
    )))
}

/// The words come from another rank, so they may be any.
fn tell(words: [u64; 2]) -> String {
    let known = collective::tell(words).or_else(|| exchange::tell(words));
    known.unwrap_or_else(|| format!("function {}", words[0]))
}

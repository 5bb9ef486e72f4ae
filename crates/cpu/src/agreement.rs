//! What all ranks have to call alike, in two words, and the comparison.

use crate::collective;
use crate::exchange;
use crate::failure::{Failure, Result};
use crate::world::World;

/// Compares what the ranks said with `step`. All see the same and come to the same result.
pub(crate) fn check(world: &World, rank: usize, step: u64) -> Result {
    let own = world.common(rank, step);
    let ranks = world.ranks();
    if (0..ranks).all(|other| world.common(other, step) == own) {
        return Ok(());
    }
    let first = world.common(0, step);
    let other = (1..ranks).find(|other| world.common(*other, step) != first).unwrap_or(rank);
    Err(Failure::usage(format!(
        "the ranks called different functions: rank {other} called {}, rank 0 called {}",
        tell(world.common(other, step)),
        tell(first)
    )))
}

/// The words come from another rank, so they may be any.
fn tell(words: [u64; 2]) -> String {
    let known = collective::tell(words).or_else(|| exchange::tell(words));
    known.unwrap_or_else(|| format!("function {}", words[0]))
}

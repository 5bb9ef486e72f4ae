//! One-sided operations: writing into another rank's part of a window, signals, and waiting for them.
//!
//! A signal is a pair of counters for each pair of ranks: how often it was raised, which only the raising rank
//! writes, and how often that has been waited for, which only the waiting one does.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::buffer::{Source, Target};
use crate::failure::Result;
use crate::world::World;

/// From so many bytes on what is written goes around the caches.
const STREAM: usize = 4 << 20;

/// Bytes on their way into another rank's memory.
#[derive(Debug)]
pub(crate) struct Put {
    pub(crate) from: Source,
    /// As long, and no part of `from` unless they are the same.
    pub(crate) to: Target,
}

/// Raises that a rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Awaited {
    pub(crate) peer: usize,
    pub(crate) signal: usize,
    pub(crate) raises: u64,
}

impl Put {
    pub(crate) fn run(&self) {
        self.to.copy(self.from, self.from.length() >= STREAM);
    }
}

/// Raises a signal of `rank` at `peer`, which then sees all that `rank` has written before.
pub(crate) fn raise(world: &World, rank: usize, peer: usize, signal: usize) -> Result {
    world.health(peer)?;
    let (raised, _) = world.signal(rank, peer, signal);
    raised.fetch_add(1, Release);
    Ok(())
}

/// Waits until all of them have come, each of which counts once.
pub(crate) async fn wait(world: &World, rank: usize, all: &[Awaited]) -> Result {
    for Awaited { peer, signal, raises } in all {
        let (raised, taken) = world.signal(*peer, rank, *signal);
        let before = taken.load(Relaxed);
        world.wait(*peer, || raised.load(Acquire).wrapping_sub(before) >= *raises).await?;
        taken.store(before.wrapping_add(*raises), Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::run_one;
    use crate::process::Process;
    use crate::world::Alarm;

    fn world(ranks: usize) -> World {
        World::create(&vec![Process::current().unwrap(); ranks]).unwrap().0
    }

    #[test]
    fn raises_are_counted_by_pair_and_signal_and_count_once() {
        let world = world(3);
        for _ in 0..3 {
            raise(&world, 0, 1, 5).unwrap();
        }
        let wait_for = |peer, signal, raises| {
            let all = [Awaited { peer, signal, raises }];
            // Where they have not come yet, bad news end the waiting.
            run_one(wait(&world, 1, &all), 1, || world.alarm(2, Alarm::Failed))
        };
        wait_for(0, 5, 2).unwrap();
        wait_for(0, 5, 1).unwrap();
        wait_for(0, 5, 0).unwrap();
        for (peer, signal) in [(0, 5), (0, 4), (2, 5)] {
            assert_eq!(wait_for(peer, signal, 1).unwrap_err().text, "rank 2 failed");
        }
    }
}

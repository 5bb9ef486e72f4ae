//! The tuner: chooses between staging and cross-memory attach by the times that both took lately.
//!
//! Neither is always faster. Staging copies everything twice, but from cache to cache; how fast that is depends on where
//! the ranks run, and with virtual processors it changes from second to second, by up to four times.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The number of times that are remembered of each way. Their median counts, as a rank may be interrupted.
const RECENT: usize = 5;

/// The number of times that are taken of each way before one is preferred.
const TRIES: u64 = 3;

/// One call in so many takes the slower way, which may have become the faster one.
const PROBE_INTERVAL: u64 = 64;

/// The choice of one rank of a communicator.
#[derive(Debug, Default)]
pub(crate) struct Tuner(Mutex<HashMap<Class, Times>>);

/// Calls that take about as long: a function, and the logarithm of a size.
type Class = (u8, u32);

#[derive(Debug, Default)]
struct Times {
    calls: u64,
    staged: Recent,
    read: Recent,
}

/// The latest times of one way, in nanoseconds.
#[derive(Debug, Default)]
struct Recent {
    taken: u64,
    times: [u64; RECENT],
}

impl Recent {
    fn add(&mut self, time: Duration) {
        self.times[(self.taken % RECENT as u64) as usize] =
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.taken += 1;
    }

    /// Returns the median, once there is a time.
    fn median(&self) -> u64 {
        let known = usize::try_from(self.taken).map_or(RECENT, |taken| taken.min(RECENT));
        let mut times = self.times;
        times[..known].sort_unstable();
        times[known / 2]
    }
}

impl Tuner {
    /// Returns `true` if the next call of `function` on `bytes` is to be staged.
    pub(crate) fn prefers_staging(&self, function: u8, bytes: usize) -> bool {
        self.with(function, bytes, |Times { calls, staged, read }| {
            *calls += 1;
            if staged.taken.min(read.taken) < TRIES {
                return staged.taken <= read.taken;
            }
            let is_faster = staged.median() <= read.median();
            is_faster != calls.is_multiple_of(PROBE_INTERVAL)
        })
    }

    /// Records the time of a call that was `staged`, or read across processes.
    pub(crate) fn record(&self, function: u8, bytes: usize, staged: bool, time: Duration) {
        self.with(function, bytes, |times| {
            let recent = if staged { &mut times.staged } else { &mut times.read };
            recent.add(time);
        });
    }

    fn with<T>(&self, function: u8, bytes: usize, act: impl FnOnce(&mut Times) -> T) -> T {
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(classes.entry((function, bytes.max(1).ilog2())).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `calls` calls that take these times, and returns the number of those that were staged.
    fn run(tuner: &Tuner, calls: u64, staged: u64, read: u64) -> u64 {
        let call = |_| {
            let prefers_staging = tuner.prefers_staging(1, 1000);
            let time = if prefers_staging { staged } else { read };
            tuner.record(1, 1000, prefers_staging, Duration::from_micros(time));
            u64::from(prefers_staging)
        };
        (0..calls).map(call).sum()
    }

    #[test]
    fn faster_way_is_used_but_for_some_probes() {
        let tuner = Tuner::default();
        assert_eq!(run(&tuner, 64, 50, 90), 64 - TRIES - 1);
        let tuner = Tuner::default();
        assert_eq!(run(&tuner, 64, 190, 90), TRIES + 1);
    }

    #[test]
    fn way_that_becomes_slow_is_left_within_few_calls() {
        let tuner = Tuner::default();
        run(&tuner, 100, 50, 90);
        assert!(run(&tuner, 60, 190, 90) <= RECENT as u64 + 1);
        // Found out by probes, when most of the old times have been replaced.
        run(&tuner, 4 * PROBE_INTERVAL, 50, 90);
        assert!(run(&tuner, 60, 50, 90) >= 58);
    }

    #[test]
    fn single_interruption_changes_nothing() {
        let tuner = Tuner::default();
        run(&tuner, 10, 50, 90);
        tuner.record(1, 1000, true, Duration::from_secs(1));
        assert_eq!(run(&tuner, 20, 50, 90), 20);
    }

    #[test]
    fn sizes_and_functions_are_told_apart() {
        let tuner = Tuner::default();
        run(&tuner, 10, 50, 90);
        tuner.prefers_staging(2, 1000);
        tuner.record(2, 1000, true, Duration::from_micros(1));
        assert!(!tuner.prefers_staging(2, 1000), "the other way has not been tried");
        assert!(tuner.prefers_staging(1, 1 << 20), "not tried at this size");
    }
}

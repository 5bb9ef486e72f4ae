//! The tuner: chooses how data that ranks cannot map is moved, by the times that each method took lately.
//!
//! None is always the fastest. Staging copies everything twice, from cache to cache, and how fast that is depends on
//! where the ranks run: with virtual processors it changes from second to second, by up to five times. Non-temporal
//! staging goes through memory instead, whose speed changes less. Cross-memory attach copies once, a page at a time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The number of times that are remembered of each method. Their median counts, as a rank may be interrupted.
const RECENT: usize = 5;

/// The number of times that are taken of each method before one is preferred.
const TRIES: u64 = 3;

/// The bytes from which on one time of each method is enough at first: it is long compared with an interruption.
const LONG: usize = 16 << 20;

/// One call in so many takes another method, which may have become the fastest.
const PROBE_INTERVAL: u64 = 64;

/// A method of moving data that ranks cannot map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// Cross-memory attach.
    Cma,
    /// Staging through the caches.
    Staged,
    /// Staging by non-temporal stores.
    StagedNontemporal,
}

/// The choice of one rank of a communicator.
#[derive(Debug, Default)]
pub(crate) struct Tuner(Mutex<HashMap<Class, Times>>);

/// Calls that take about as long: a function, and the logarithm of a size.
type Class = (u8, u32);

/// The calls of a class, and the latest times of each method.
#[derive(Debug, Default)]
struct Times {
    calls: u64,
    recent: [Recent; 3],
}

/// The latest times of one method, in nanoseconds.
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

    /// Returns the median, once there is a time: the shorter one of two.
    fn median(&self) -> u64 {
        let known = usize::try_from(self.taken).map_or(RECENT, |taken| taken.min(RECENT));
        let mut times = self.times;
        times[..known].sort_unstable();
        times[known.saturating_sub(1) / 2]
    }
}

impl Tuner {
    /// Returns the method for the next call of `function` on `bytes`, one of `methods`, of which there is at least one.
    pub(crate) fn choose(&self, function: u8, bytes: usize, methods: &[Method]) -> Method {
        self.with(function, bytes, |Times { calls, recent }| {
            *calls += 1;
            let of = |method: &Method| &recent[*method as usize];
            let tries = if bytes < LONG { TRIES } else { 1 };
            let untried = methods.iter().filter(|method| of(method).taken < tries);
            if let Some(method) = untried.min_by_key(|method| of(method).taken) {
                return *method;
            }
            let fastest = methods.iter().min_by_key(|method| of(method).median()).copied();
            let fastest = fastest.unwrap_or(Method::Staged);
            let others = methods.iter().filter(|method| **method != fastest);
            // The others take turns.
            let turn = (*calls / PROBE_INTERVAL) as usize % methods.len().saturating_sub(1).max(1);
            let probed = others.copied().nth(turn).filter(|_| calls.is_multiple_of(PROBE_INTERVAL));
            probed.unwrap_or(fastest)
        })
    }

    /// Records the time of a call that was made by `method`.
    pub(crate) fn record(&self, function: u8, bytes: usize, method: Method, time: Duration) {
        self.with(function, bytes, |times| times.recent[method as usize].add(time));
    }

    fn with<T>(&self, function: u8, bytes: usize, act: impl FnOnce(&mut Times) -> T) -> T {
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(classes.entry((function, bytes.max(1).ilog2())).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::Method::{Cma, Staged, StagedNontemporal};
    use super::*;

    const ALL: [Method; 3] = [Staged, StagedNontemporal, Cma];

    /// Makes `calls` calls of a length by methods that take these times, and returns how many each made.
    fn run_on(tuner: &Tuner, bytes: usize, calls: u64, staged: u64, nontemporal: u64, cma: u64) -> [u64; 3] {
        let mut made = [0; 3];
        for _ in 0..calls {
            let method = tuner.choose(1, bytes, &ALL);
            let time = match method {
                Staged => staged,
                StagedNontemporal => nontemporal,
                Cma => cma,
            };
            tuner.record(1, bytes, method, Duration::from_micros(time));
            made[method as usize] += 1;
        }
        made
    }

    fn run(tuner: &Tuner, calls: u64, staged: u64, nontemporal: u64, cma: u64) -> [u64; 3] {
        run_on(tuner, 1000, calls, staged, nontemporal, cma)
    }

    #[test]
    fn fastest_method_is_used_but_for_some_probes() {
        for (times, fastest) in
            [([50, 70, 90], Staged), ([70, 50, 90], StagedNontemporal), ([90, 70, 50], Cma)]
        {
            let made = run(&Tuner::default(), 128, times[0], times[1], times[2]);
            for method in ALL {
                let expected = if method == fastest { 128 - 2 * TRIES - 2 } else { TRIES + 1 };
                assert_eq!(made[method as usize], expected, "{method:?} where {fastest:?} is the fastest");
            }
        }
    }

    #[test]
    fn long_calls_try_each_method_once() {
        let made = run_on(&Tuner::default(), LONG, 10, 50, 40, 90);
        assert_eq!((made[Staged as usize], made[StagedNontemporal as usize], made[Cma as usize]), (1, 8, 1));
    }

    #[test]
    fn method_that_becomes_slow_is_left_within_few_calls() {
        let tuner = Tuner::default();
        run(&tuner, 100, 50, 70, 90);
        assert!(run(&tuner, 60, 190, 70, 90)[Staged as usize] <= RECENT as u64 + 1);
        // Found out by probes, when most of the old times have been replaced.
        run(&tuner, 8 * PROBE_INTERVAL, 50, 70, 90);
        assert!(run(&tuner, 60, 50, 70, 90)[Staged as usize] >= 58);
    }

    #[test]
    fn single_interruption_changes_nothing() {
        let tuner = Tuner::default();
        run(&tuner, 10, 50, 70, 90);
        tuner.record(1, 1000, Staged, Duration::from_secs(1));
        assert_eq!(run(&tuner, 20, 50, 70, 90)[Staged as usize], 20);
    }

    #[test]
    fn method_that_is_not_offered_is_not_chosen() {
        let tuner = Tuner::default();
        run(&tuner, 100, 90, 70, 50);
        for _ in 0..2 * PROBE_INTERVAL {
            assert_ne!(tuner.choose(1, 1000, &[Staged, StagedNontemporal]), Cma);
            assert_eq!(tuner.choose(1, 1000, &[Staged]), Staged);
        }
    }

    #[test]
    fn sizes_and_functions_are_told_apart() {
        let tuner = Tuner::default();
        run(&tuner, 10, 50, 70, 90);
        tuner.record(2, 1000, Staged, Duration::from_micros(1));
        assert_ne!(tuner.choose(2, 1000, &ALL), Staged, "the others have not been tried");
        assert_eq!(tuner.choose(1, 1000, &ALL), Staged);
        assert_eq!(tuner.choose(1, 1 << 19, &[Cma]), Cma, "not tried at this size");
    }
}

//! The tuner: chooses how data that ranks cannot map is moved, by the times that each method took lately.
//!
//! None is always the fastest. Staging copies everything twice, from cache to cache, and how fast that is depends on
//! where the ranks run: with virtual processors it changes from second to second, by up to five times. Non-temporal
//! staging goes through memory instead, whose speed changes less. Cross-memory attach copies once, a page at a time.
//!
//! A method gets some calls in a row, as the first ones after another method take up to twice as long. One that was clearly
//! slower than another at the nearest length is presumed to be so, and not tried at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The number of times that are remembered of each method.
const RECENT: usize = 8;

/// The bytes from which on a call is longer than an interruption, and the caches matter little.
const LONG: usize = 16 << 20;

/// One call in so many takes another method, which may have become the fastest.
const PROBES: u64 = 100;

/// The factor by which a method takes longer that is clearly slower than another.
const CLEARLY: f64 = 1.25;

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
pub(crate) struct Tuner(Mutex<BTreeMap<Class, Times>>);

/// Calls that take about as long: a function, and the logarithm of a size.
type Class = (u8, u32);

/// The calls of a class, and the latest times of each method.
#[derive(Debug, Default)]
struct Times {
    calls: u64,
    /// The method of the last call, and the number of calls in a row by it.
    method: Option<Method>,
    row: u64,
    recent: [Recent; 3],
}

/// The times of one method since it was last taken up, in nanoseconds.
#[derive(Debug, Default)]
struct Recent {
    taken: u64,
    times: [u64; RECENT],
}

impl Times {
    /// Returns times of calls of another length, presumed of methods that are clearly slower than the fastest: in proportion, and
    /// [`CLEARLY`] more, as the first calls of the one that is used are slow too.
    fn presumed(&self, from: u32, to: u32) -> [Recent; 3] {
        let fastest = self.recent.iter().filter(|recent| recent.taken > 0).map(Recent::typical).min();
        let limit = fastest.map_or(f64::INFINITY, |time| time as f64 * CLEARLY);
        let factor = f64::from(to as i32 - from as i32).exp2() * CLEARLY;
        self.recent.each_ref().map(|recent| match recent.typical() as f64 {
            time if time > limit => Recent { taken: RECENT as u64, times: [(time * factor) as u64; RECENT] },
            _ => Recent::default(),
        })
    }
}

impl Recent {
    fn add(&mut self, time: Duration) {
        self.times[(self.taken % RECENT as u64) as usize] =
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.taken += 1;
    }

    /// Returns the mean of the times without the longest quarter, as a rank may be interrupted. The median would not do: where
    /// ranks share processors, the times of a method are often of two lengths.
    fn typical(&self) -> u64 {
        let known = usize::try_from(self.taken).map_or(RECENT, |taken| taken.min(RECENT));
        let mut times = self.times;
        times[..known].sort_unstable();
        let kept = &times[..known - known / 4];
        kept.iter().fold(0u64, |sum, time| sum.saturating_add(*time)) / kept.len().max(1) as u64
    }
}

impl Tuner {
    /// Returns the method for the next call of `function` on `bytes`, one of `methods`, of which there is at least one.
    pub(crate) fn choose(&self, function: u8, bytes: usize, methods: &[Method]) -> Method {
        self.with(function, bytes, |Times { calls, recent, .. }| {
            *calls += 1;
            let of = |method: &Method| &recent[*method as usize];
            let (settling, tries) = row(bytes);
            if let Some(method) = methods.iter().find(|method| of(method).taken < tries) {
                return *method;
            }
            let fastest = methods.iter().min_by_key(|method| of(method).typical()).copied();
            let fastest = fastest.unwrap_or(Method::Staged);
            let others = methods.iter().filter(|method| **method != fastest);
            // The others take turns, each for a row.
            let interval = (settling + tries) * PROBES;
            let turn = (*calls / interval) as usize % methods.len().saturating_sub(1).max(1);
            let probed = others.copied().nth(turn).filter(|_| calls.is_multiple_of(interval));
            probed.unwrap_or(fastest)
        })
    }

    /// Records the time of a call that was made by `method`.
    pub(crate) fn record(&self, function: u8, bytes: usize, method: Method, time: Duration) {
        self.with(function, bytes, |times| {
            if times.method.replace(method) != Some(method) {
                times.row = 0;
                times.recent[method as usize] = Recent::default();
            }
            times.row += 1;
            if times.row > row(bytes).0 {
                times.recent[method as usize].add(time);
            }
        });
    }

    fn with<T>(&self, function: u8, bytes: usize, act: impl FnOnce(&mut Times) -> T) -> T {
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let length = bytes.max(1).ilog2();
        let class = (function, length);
        if classes.get(&class).is_none() {
            let nearest = [-1, 1, -2, 2].map(|distance| length.saturating_add_signed(distance));
            let known = nearest.into_iter().find_map(|other| Some((other, classes.get(&(function, other))?)));
            let recent = known.map_or_else(Default::default, |(other, times)| times.presumed(other, length));
            classes.insert(class, Times { recent, ..Times::default() });
        }
        act(classes.entry(class).or_default())
    }
}

/// Returns the calls in a row that a method gets before it is compared with the others: first those whose times do not count, as
/// the caches are as another method left them, then those whose times do. They are few where calls are long.
fn row(bytes: usize) -> (u64, u64) {
    match bytes {
        LONG.. => (0, 1),
        0x10_0000.. => (2, 2),
        _ => (3, 5),
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

    /// Returns the calls after which each method has been tried.
    fn tries(bytes: usize) -> u64 {
        ALL.len() as u64 * probe(bytes)
    }

    fn probe(bytes: usize) -> u64 {
        let (settling, counted) = row(bytes);
        settling + counted
    }

    #[test]
    fn fastest_method_is_used_but_for_some_probes() {
        for bytes in [1000, 1 << 20, LONG] {
            for (times, fastest) in
                [([50, 70, 90], Staged), ([70, 50, 90], StagedNontemporal), ([90, 70, 50], Cma)]
            {
                let calls = 2 * PROBES * probe(bytes) + tries(bytes);
                let made = run_on(&Tuner::default(), bytes, calls, times[0], times[1], times[2]);
                for method in ALL {
                    let others = 2 * probe(bytes);
                    let expected = if method == fastest { calls - 2 * others } else { others };
                    assert_eq!(
                        made[method as usize], expected,
                        "{method:?} of {bytes} bytes where {fastest:?} is the fastest"
                    );
                }
            }
        }
    }

    /// Measured where the others' memory is read: the second call by a method took twice as long as the fifth.
    #[test]
    fn calls_that_find_caches_as_another_method_left_them_do_not_count() {
        let tuner = Tuner::default();
        let (mut last, mut row, mut read) = (None, 0, 0);
        let calls = 10 * PROBES * probe(1000);
        for _ in 0..calls {
            let method = tuner.choose(1, 1000, &ALL);
            row = if last.replace(method) == Some(method) { row + 1 } else { 1 };
            let time = match method {
                Cma if row <= 3 => 90,
                Cma => 50,
                _ => 70,
            };
            tuner.record(1, 1000, method, Duration::from_micros(time));
            read += u64::from(method == Cma);
        }
        assert!(read > calls * 9 / 10, "{read} of {calls}");
    }

    #[test]
    fn method_that_becomes_slow_is_left_within_few_calls() {
        let tuner = Tuner::default();
        run(&tuner, 100, 50, 70, 90);
        assert!(run(&tuner, 60, 190, 70, 90)[Staged as usize] <= RECENT as u64);
        // Found out by a probe.
        run(&tuner, 2 * PROBES * probe(1000), 50, 70, 90);
        assert!(run(&tuner, 60, 50, 70, 90)[Staged as usize] >= 60 - probe(1000));
    }

    #[test]
    fn method_that_was_slow_at_the_nearest_length_is_not_tried_at_first() {
        let tuner = Tuner::default();
        run(&tuner, 100, 90, 70, 50);
        assert_eq!(run_on(&tuner, 4000, 50, 360, 280, 200), [50, 0, 0]);
        // Unless the one that was fast is slow now.
        let made = run_on(&tuner, 2000, 50, 180, 140, 200);
        assert!(made[StagedNontemporal as usize] > 40, "{made:?}");
        assert!(run_on(&tuner, 1 << 20, 50, 5, 6, 7)[Staged as usize] > 0, "too far from the others");
    }

    #[test]
    fn method_with_times_of_two_lengths_is_taken_by_their_mean() {
        let tuner = Tuner::default();
        for call in 0..1000 {
            let method = tuner.choose(1, 1000, &[Staged, Cma]);
            let time = if method == Staged { 100 } else { [70, 70, 110][call % 3] };
            tuner.record(1, 1000, method, Duration::from_micros(time));
        }
        assert!((0..20).all(|_| tuner.choose(1, 1000, &[Staged, Cma]) == Cma));
    }

    #[test]
    fn single_interruption_changes_nothing() {
        let tuner = Tuner::default();
        run(&tuner, tries(1000) + 20, 50, 70, 90);
        tuner.record(1, 1000, Staged, Duration::from_secs(1));
        assert_eq!(run(&tuner, 20, 50, 70, 90)[Staged as usize], 20);
    }

    #[test]
    fn method_that_is_not_offered_is_not_chosen() {
        let tuner = Tuner::default();
        run(&tuner, 100, 90, 70, 50);
        for _ in 0..2 * PROBES * probe(1000) {
            assert_ne!(tuner.choose(1, 1000, &[Staged, StagedNontemporal]), Cma);
            assert_eq!(tuner.choose(1, 1000, &[Staged]), Staged);
        }
    }

    #[test]
    fn sizes_and_functions_are_told_apart() {
        let tuner = Tuner::default();
        run(&tuner, tries(1000), 50, 70, 90);
        run_on(&tuner, 1 << 20, tries(1 << 20), 90, 70, 50);
        for _ in 0..probe(1000) {
            tuner.record(2, 1000, Staged, Duration::from_micros(1));
        }
        assert_ne!(tuner.choose(2, 1000, &ALL), Staged, "the others have not been tried");
        assert_eq!(tuner.choose(1, 1000, &ALL), Staged);
        assert_eq!(tuner.choose(1, 1 << 20, &ALL), Cma);
    }
}

//! Backoff while waiting for another rank: spin first, then yield, then sleep.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Time without progress after which a waiting thread checks for other events, such as the end of a process.
const IDLE_INTERVAL: Duration = Duration::from_millis(50);

/// Spins before yielding if every rank has a CPU: one to three microseconds.
const SPINS: u32 = 60;

/// Spins before yielding when ranks outnumber CPUs.
const OVERSUBSCRIBED_SPINS: u32 = 2;

thread_local! {
    static PROGRESS: Cell<bool> = const { Cell::new(false) };
    /// Spins that a single operation may do without returning to the executor.
    static SPIN_BUDGET: Cell<u32> = const { Cell::new(0) };
    /// The longest time that a single operation may sleep in its next turn.
    static NAP: Cell<Option<Duration>> = const { Cell::new(None) };
}

pub(super) fn set_spin_budget(spins: u32) {
    SPIN_BUDGET.set(spins);
}

/// Returns the number of spins before yielding for `ranks` ranks that wait for each other.
pub(super) fn spins(ranks: usize) -> u32 {
    static CPUS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    if ranks > *CPUS { OVERSUBSCRIBED_SPINS } else { SPINS }
}

/// Tests `done` repeatedly within the thread's spin budget, which is faster than being polled again. Returns the last result.
pub(crate) fn spin(done: impl Fn() -> bool) -> bool {
    (0..SPIN_BUDGET.get()).any(|_| {
        let done = done();
        if !done {
            // This also prevents the CPU from speculatively reading what the other rank is about to write.
            std::hint::spin_loop();
        }
        done
    })
}

/// Takes the longest time that the operation polled by this thread may sleep in this turn. Returns `None` if it may not sleep, or
/// if the time was already taken.
pub(crate) fn take_nap() -> Option<Duration> {
    NAP.take()
}

pub(crate) fn note_progress() {
    PROGRESS.set(true);
    // The next wait begins by spinning.
    NAP.set(None);
}

/// The longest sleep of a thread that is not woken. [`LONGEST_NAP`] applies to a thread that another rank wakes.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
const LONGEST_NAP: Duration = Duration::from_millis(250);

/// Returns the next sleep time of a thread that is not woken: at first up to a millisecond, then a 64th of the time waited, which
/// lengthens the wait by at most 1.6 %.
fn sleep_time(doublings: u32, waited: Duration) -> Duration {
    Duration::from_micros(32 << doublings).max(waited / 64).min(LONGEST_SLEEP)
}

fn nap_time(waited: Duration) -> Duration {
    (waited / 4).clamp(Duration::from_millis(1), LONGEST_NAP)
}

/// The state of one wait. Pauses become longer while there is no progress.
pub(super) struct Backoff {
    spins: u32,
    turns: u32,
    began: Option<Instant>,
    checked: Option<Instant>,
}

impl Backoff {
    const YIELDS: u32 = 1000;
    /// The number of yields between two checks of the clock.
    const YIELDS_AT_ONCE: u32 = 32;
    /// The time after which a thread no longer yields. With many threads, one yield can take that long.
    const LONGEST_YIELDING: Duration = Duration::from_millis(2);

    pub(super) fn new(spins: u32) -> Self {
        NAP.set(None);
        Self { spins, turns: 0, began: None, checked: None }
    }

    /// Pauses once, and calls `idle` with the time without progress every [`IDLE_INTERVAL`], or later if a sleep is longer.
    /// `is_single` states that the thread runs a single operation, which may then sleep in its next turn.
    pub(super) fn pause(&mut self, is_single: bool, idle: &mut dyn FnMut(Duration)) {
        if PROGRESS.replace(false) {
            self.turns = 0;
            self.began = None;
        }
        self.turns = self.turns.saturating_add(1);
        if self.turns <= self.spins {
            std::hint::spin_loop();
        } else if self.turns <= self.spins + Self::YIELDS {
            std::thread::yield_now();
            let began = *self.began.get_or_insert_with(Instant::now);
            if self.turns.is_multiple_of(Self::YIELDS_AT_ONCE) && began.elapsed() > Self::LONGEST_YIELDING {
                self.turns = self.spins + Self::YIELDS;
            }
        } else {
            self.sleep(is_single, idle);
        }
    }

    fn sleep(&mut self, is_single: bool, idle: &mut dyn FnMut(Duration)) {
        let began = *self.began.get_or_insert_with(Instant::now);
        // If the operation did not sleep in its last turn, it waits for an event that does not wake threads.
        let has_slept = self.turns > self.spins + Self::YIELDS + 1 && is_single && NAP.take().is_none();
        if !has_slept {
            let doublings = ((self.turns - self.spins - Self::YIELDS) / 8).min(5);
            std::thread::sleep(sleep_time(doublings, began.elapsed()));
        }
        let now = Instant::now();
        if is_single {
            NAP.set(Some(nap_time(now - began)));
        }
        if now - *self.checked.get_or_insert(now) >= IDLE_INTERVAL {
            self.checked = Some(now);
            idle(now - began);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_grows_with_the_wait() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        assert_eq!(sleep_time(0, ms(1)), Duration::from_micros(32));
        assert_eq!(sleep_time(5, ms(60)), Duration::from_micros(1024));
        assert_eq!(sleep_time(5, ms(640)), ms(10));
        assert_eq!(sleep_time(5, s(3600)), LONGEST_SLEEP);
        assert_eq!(nap_time(ms(1)), ms(1));
        assert_eq!(nap_time(ms(640)), ms(160));
        assert_eq!(nap_time(s(3600)), LONGEST_NAP);
    }
}

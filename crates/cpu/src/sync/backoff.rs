//! Backing off while another rank is awaited: spin first, then yield, then sleep.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Time without progress after which a waiting thread looks at what else may have happened.
const IDLE_INTERVAL: Duration = Duration::from_millis(50);

/// Spins before yielding where every rank has a CPU: one to three microseconds.
const SPINS: u32 = 60;

/// Spins before yielding when ranks outnumber CPUs.
const OVERSUBSCRIBED_SPINS: u32 = 2;

thread_local! {
    static PROGRESS: Cell<bool> = const { Cell::new(false) };
    /// Spins that a single operation may do by itself, without returning to the executor.
    static SPIN_BUDGET: Cell<u32> = const { Cell::new(0) };
}

/// Sets how often [`spin`] tests on this thread.
pub(super) fn set_spin_budget(spins: u32) {
    SPIN_BUDGET.set(spins);
}

/// Returns the number of spins before yielding for `ranks` ranks that wait for each other.
pub(super) fn spins(ranks: usize) -> u32 {
    static CPUS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    if ranks > *CPUS { OVERSUBSCRIBED_SPINS } else { SPINS }
}

/// Tests `done` within the thread's spin budget, which is faster than being polled again. Returns the last outcome.
pub(crate) fn spin(done: impl Fn() -> bool) -> bool {
    (0..SPIN_BUDGET.get()).any(|_| {
        let done = done();
        if !done {
            // It also keeps the CPU from speculatively reading what the other rank is about to write.
            std::hint::spin_loop();
        }
        done
    })
}

/// Records that an operation that waited has made progress.
pub(crate) fn note_progress() {
    PROGRESS.set(true);
}

/// The longest sleep.
const LONGEST_NAP: Duration = Duration::from_millis(100);

/// Returns the time to sleep next: up to a millisecond at the beginning, then a 64th of the time waited, so that a wait
/// becomes at most 1.6 % longer, and a thread that waits for long takes hardly any CPU time.
fn nap(doublings: u32, waited: Duration) -> Duration {
    Duration::from_micros(32 << doublings).max(waited / 64).min(LONGEST_NAP)
}

/// The state of one wait: the longer nothing happens, the longer it pauses.
pub(super) struct Backoff {
    spins: u32,
    turns: u32,
    /// The beginning of the wait, as far as it is known.
    began: Option<Instant>,
    checked: Option<Instant>,
}

impl Backoff {
    const YIELDS: u32 = 1000;

    pub(super) fn new(spins: u32) -> Self {
        Self { spins, turns: 0, began: None, checked: None }
    }

    /// Pauses once, and calls `idle` with the time without progress every [`IDLE_INTERVAL`], later if it sleeps longer.
    pub(super) fn pause(&mut self, idle: &mut impl FnMut(Duration)) {
        if PROGRESS.replace(false) {
            self.turns = 0;
            self.began = None;
        }
        self.turns = self.turns.saturating_add(1);
        if self.turns <= self.spins {
            std::hint::spin_loop();
        } else if self.turns <= self.spins + Self::YIELDS {
            std::thread::yield_now();
        } else {
            self.sleep(idle);
        }
    }

    fn sleep(&mut self, idle: &mut impl FnMut(Duration)) {
        let doublings = ((self.turns - self.spins - Self::YIELDS) / 8).min(5);
        let began = *self.began.get_or_insert_with(Instant::now);
        std::thread::sleep(nap(doublings, began.elapsed()));
        let now = Instant::now();
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
    fn nap_grows_with_the_wait() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        assert_eq!(nap(0, ms(1)), Duration::from_micros(32));
        assert_eq!(nap(5, ms(60)), Duration::from_micros(1024));
        assert_eq!(nap(5, ms(640)), ms(10));
        assert_eq!(nap(5, s(3600)), LONGEST_NAP);
    }
}

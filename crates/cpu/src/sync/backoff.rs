//! Backing off while another rank is awaited: spin first, then yield, then sleep.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Time without progress after which the liveness of the other ranks is checked.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(50);

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

    /// Pauses once, and calls `idle` with the time without progress every [`LIVENESS_INTERVAL`].
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
        std::thread::sleep(Duration::from_micros(32 << doublings));
        let now = Instant::now();
        let began = *self.began.get_or_insert(now);
        if now - *self.checked.get_or_insert(now) >= LIVENESS_INTERVAL {
            self.checked = Some(now);
            idle(now - began);
        }
    }
}

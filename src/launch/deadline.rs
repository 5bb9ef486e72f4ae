use std::thread;
use std::time::{Duration, Instant};

/// The time until which an exchange may last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    started: Instant,
    end: Instant,
}

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        let started = Instant::now();
        // A timeout beyond the clock's range is as good as none.
        let end = started.checked_add(timeout).unwrap_or_else(|| started + Duration::from_secs(1 << 30));
        Self { started, end }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Makes this the deadline of someone who waits for so long from now, if that is earlier.
    pub(crate) fn shorten_to(&mut self, wait: Duration) {
        if wait < self.remaining() {
            self.end = Instant::now() + wait;
        }
    }

    /// Returns the deadline of a part that may take so long.
    pub(crate) fn part(&self, limit: Duration) -> Self {
        let mut part = Self { started: Instant::now(), ..*self };
        part.shorten_to(limit);
        part
    }

    /// Sleeps so long, or until the deadline.
    pub(crate) fn sleep(&self, time: Duration) {
        thread::sleep(time.min(self.remaining()));
    }
}

use std::thread;
use std::time::{Duration, Instant};

/// The time until which an exchange may last.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    started: Instant,
    end: Instant,
}

impl Deadline {
    /// Returns the deadline after so long from now.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        let started = Instant::now();
        // A timeout beyond the clock's range is as good as none.
        let end = started.checked_add(timeout).unwrap_or_else(|| started + Duration::from_secs(1 << 30));
        Self { started, end }
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the time that is left.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Returns `true` if no time is left.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the deadline of a part that may take so long.
    #[must_use]
    pub fn part(&self, limit: Duration) -> Self {
        let started = Instant::now();
        Self { started, end: started.checked_add(limit).map_or(self.end, |end| end.min(self.end)) }
    }

    /// Sleeps so long, or until the deadline.
    pub fn sleep(&self, time: Duration) {
        thread::sleep(time.min(self.remaining()));
    }
}

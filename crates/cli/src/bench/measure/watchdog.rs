//! The end of a run in which nothing happens any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A count of operations, at which a thread looks if there is a limit of time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watchdog(Option<Arc<AtomicU64>>);

impl Watchdog {
    /// Calls `expire` if no operation is started in this time, on a thread of its own.
    pub(crate) fn start(
        timeout: Option<Duration>,
        expire: impl FnOnce(Duration) + Send + 'static,
    ) -> Result<Self> {
        const MAX_POLL: Duration = Duration::from_millis(100);

        let Some(timeout) = timeout else { return Ok(Self(None)) };
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let watch = move || {
            let (mut last, mut since) = (counted.load(Ordering::Relaxed), Instant::now());
            while since.elapsed() < timeout {
                thread::sleep(MAX_POLL.min(timeout / 4));
                let count = counted.load(Ordering::Relaxed);
                if count != last {
                    (last, since) = (count, Instant::now());
                }
            }
            expire(timeout);
        };
        thread::Builder::new().name("timeout".into()).spawn(watch).context("cannot start a thread")?;
        Ok(Self(Some(count)))
    }

    #[inline]
    pub(crate) fn progress(&self) {
        if let Some(count) = &self.0 {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::Watchdog;

    #[test]
    fn watchdog_expires_after_the_last_progress() {
        let (sender, expired) = channel();
        let timeout = Duration::from_millis(400);
        let start = Instant::now();
        let watchdog = Watchdog::start(Some(timeout), move |timeout| sender.send(timeout).unwrap()).unwrap();
        for _ in 0..8 {
            watchdog.progress();
            thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(expired.recv(), Ok(timeout));
        assert!(start.elapsed() >= Duration::from_millis(1000));
    }
}

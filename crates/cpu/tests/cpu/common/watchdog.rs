//! Aborts the program if a test hangs: a thread that waits for another rank cannot be ended otherwise.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Time that a test may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// A guard that watches until it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog(#[allow(unused)] Sender<()>);

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self::with_limit(LIMIT)
    }

    pub(crate) fn with_limit(limit: Duration) -> Self {
        let (sender, receiver) = channel();
        let test = thread::current().name().unwrap_or("a test").to_owned();
        thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Not captured with the test's output, which is lost.
                let _ = writeln!(std::io::stderr(), "{test} hangs");
                std::process::abort();
            }
        });
        Self(sender)
    }
}

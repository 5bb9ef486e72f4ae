//! Ends the process on a signal, after the output of what was measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;

use crate::run::ignores;

static HAS_COME: AtomicBool = AtomicBool::new(false);

/// Calls `complete` when a signal comes, then ends the process with status 128 plus the signal's number.
pub(crate) fn end_with_output(complete: impl Fn() + Send + 'static) -> Result<()> {
    // A shell has SIGINT ignored in what a script starts in the background.
    let signals = [SIGINT, SIGTERM].into_iter().filter(|signal| !ignores(*signal));
    let mut signals = Signals::new(signals).context("cannot handle signals")?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            HAS_COME.store(true, Ordering::Relaxed);
            complete();
            end(128 + signal)
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread")?;
    Ok(())
}

/// Waits for the signal that a launcher sends when another rank has failed or the job is interrupted: this rank's own failure
/// may only be a consequence. Returns if there is none.
pub(crate) fn let_signal_come_first() {
    const LIMIT: Duration = Duration::from_millis(100);

    thread::sleep(LIMIT);
    while HAS_COME.load(Ordering::Relaxed) {
        // The thread that handles the signal ends the process.
        thread::sleep(LIMIT);
    }
}

/// Ends the process without running exit handlers of libraries, as other threads may be in NCCL.
pub(crate) fn end(status: i32) -> ! {
    exit(status)
}

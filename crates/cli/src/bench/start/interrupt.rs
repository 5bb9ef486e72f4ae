//! The end by a signal: what was measured is written, and no process remains.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;

use crate::run::ignores;

const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// Completes the output by `complete` when a signal comes, and ends the process with 128 and the signal's number.
pub(crate) fn end_with_output(complete: impl Fn() + Send + 'static) -> Result<()> {
    on_signal(move |signal| {
        complete();
        end(exit_code(signal).into())
    })
}

/// Leaves a signal to the parent, which ends this process.
pub(crate) fn leave_to_parent() -> Result<()> {
    on_signal(|_| {})
}

/// Returns the signal that has come, 0 before.
pub(crate) fn watch() -> Result<Arc<AtomicI32>> {
    let received = Arc::new(AtomicI32::new(0));
    let writer = Arc::clone(&received);
    on_signal(move |signal| writer.store(signal, Ordering::Relaxed))?;
    Ok(received)
}

/// Ends the process without the functions that libraries have registered for that, as other threads may be in NCCL.
pub(crate) fn end(status: i32) -> ! {
    exit(status)
}

/// Returns the exit status that a shell reports for a signal.
pub(crate) fn exit_code(signal: i32) -> u8 {
    128 + signal as u8
}

/// Returns whether a process ends with this status because of a signal.
pub(crate) fn is_exit_code(status: i32) -> bool {
    SIGNALS.iter().any(|signal| i32::from(exit_code(*signal)) == status)
}

fn on_signal(mut react: impl FnMut(i32) + Send + 'static) -> Result<()> {
    // A shell has SIGINT ignored in what a script starts in the background.
    let signals = SIGNALS.into_iter().filter(|signal| !ignores(*signal));
    let mut signals = Signals::new(signals).context("cannot handle signals")?;
    let wait = move || signals.forever().for_each(&mut react);
    thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread")?;
    Ok(())
}

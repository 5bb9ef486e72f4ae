use std::{io, thread};

use libnccl::internal::environment::variable;
use signal_hook::consts::{FORBIDDEN, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::variables::RECORDER_SIGNAL;

/// The largest signal number of any Unix.
const MAX: i32 = 64;

/// Calls `write` for each arrival of a signal, on a separate thread, because a signal handler must not even allocate memory.
pub(crate) fn on_signal(signal: i32, mut write: impl FnMut() + Send + 'static) -> io::Result<()> {
    // The crate signal-hook panics in both cases.
    if FORBIDDEN.contains(&signal) || !(1..=MAX).contains(&signal) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("signal {signal} cannot be handled"),
        ));
    }
    libnccl::internal::keep_loaded();
    let mut signals = Signals::new([signal])?;
    let handle = signals.handle();
    // `nccl recorder diff --pid` searches for this thread name.
    let thread = thread::Builder::new().name("libnccl-signal".into());
    let started = thread.spawn(move || signals.forever().for_each(|_| write()));
    started.map(drop).inspect_err(|_| handle.close())
}

/// Calls [`on_signal`] for the signal that `LIBNCCL_RECORDER_SIGNAL` names; does nothing if it is not set.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the variable is neither `USR1` nor `USR2`; the system's error if the signal cannot be
/// handled.
pub(crate) fn on_signal_of_environment(write: impl FnMut() + Send + 'static) -> io::Result<()> {
    let Some(name) = variable(RECORDER_SIGNAL) else { return Ok(()) };
    let signal = match name.to_str().map(|name| name.trim_start_matches("SIG")) {
        Some("USR1") => SIGUSR1,
        Some("USR2") => SIGUSR2,
        _ => {
            let problem = format!("{RECORDER_SIGNAL} is {name:?}; expected USR1 or USR2");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
    };
    on_signal(signal, write)
}

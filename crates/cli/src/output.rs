//! The standard output, for data that programs read.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::OnceLock;

use anyhow::{Context, Result};

/// The standard output of the process, once libraries write to the standard error instead.
static OWN: OnceLock<File> = OnceLock::new();

/// Directs all that libraries write to the standard output to the standard error from now on: NCCL's log goes there by
/// default, and JSON with lines of a log in it is none. Whoever calls it writes to [`stdout`].
pub(crate) fn keep_libraries_out() -> Result<()> {
    if OWN.get().is_none() {
        let own =
            io::stdout().as_fd().try_clone_to_owned().context("cannot duplicate the standard output")?;
        rustix::stdio::dup2_stdout(io::stderr()).context("cannot redirect the standard output")?;
        // The program does so once, before it has threads.
        let _ = OWN.set(own.into());
    }
    Ok(())
}

/// Returns the standard output, which libraries may write to as well.
pub(crate) fn stdout() -> Box<dyn Write + Send> {
    match OWN.get() {
        Some(own) => Box::new(own),
        None => Box::new(io::stdout()),
    }
}

/// Returns the standard output for a process of this program.
pub(crate) fn stdout_of_child() -> Result<Stdio> {
    match OWN.get() {
        Some(own) => Ok(own.try_clone().context("cannot duplicate the standard output")?.into()),
        None => Ok(Stdio::inherit()),
    }
}

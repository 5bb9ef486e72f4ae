//! The exit status of the program.

use std::io::{self, ErrorKind};

use anyhow::Error;

/// The end of every help text. Clap exits with status 2.
pub(crate) const HELP: &str = "\
Exit status:
  0    Success
  1    Failure; for bench also wrong results, for doctor also a problem
  2    Invalid command line
  141  The reader of the output closed it, as in `nccl ... | head -1`";

/// The status that a shell reports for a program that SIGPIPE ended. Rust ignores that signal, so printing fails instead.
pub(crate) const OUTPUT_CLOSED: u8 = 128 + 13;

/// Returns whether the reader of the output has closed it. Nothing else here writes to a pipe.
pub(crate) fn is_output_closed(error: &Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

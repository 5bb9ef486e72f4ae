use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

const DIFF_HELP: &str = "\
Each rank of a job writes its recording when it fails, or on request (docs/hangs.md). An example:
  nccl recorder diff /tmp/recordings
  nccl recorder diff rank0.json rank1.json --html job.html

A job that runs is asked with the signal that its variable LIBNCCL_RECORDER_SIGNAL names, USR1 or USR2, and goes on:
  nccl recorder diff --pid 4711

Exit status:
  0    All ranks called the same operations
  1    They did not, or the recordings have no communicator; or one cannot be read: one in a folder is named, and the others
       are compared
  2    Invalid command line
  141  The reader of the output closed it";

#[derive(Debug, Args)]
pub(crate) struct RecorderArguments {
    #[command(subcommand)]
    pub(crate) command: RecorderCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecorderCommand {
    /// Say at which operation the ranks of a job diverged, and which ranks are to blame
    Diff(DiffArguments),
}

#[derive(Debug, Args)]
#[command(after_help = DIFF_HELP)]
pub(crate) struct DiffArguments {
    /// Recordings of the ranks, or folders with them
    #[arg(required_unless_present = "pid", value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Ask the ranks that run as process PID, or below it if it is their launcher, for their recordings; may be repeated
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Vec<i32>,
    /// Time that these ranks have to write their recordings
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration, requires = "pid")]
    pub(crate) timeout: Duration,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with a timeline of each rank to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

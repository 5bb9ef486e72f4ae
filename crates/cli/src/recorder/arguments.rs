use std::path::PathBuf;

use clap::{Args, Subcommand};

const DIFF_HELP: &str = "\
Each rank of a job writes its recording when it fails, or on request (docs/recorder.md). An example:
  nccl recorder diff /tmp/recordings
  nccl recorder diff rank0.json rank1.json --html job.html

Exit status:
  0    All ranks called the same operations
  1    They did not, or a recording cannot be read
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
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with a timeline of each rank to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

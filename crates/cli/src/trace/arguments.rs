use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::value_parser::whole;

const HELP: &str = "\
The program gets libnccl-trace.so in the place of NCCL. It passes all calls on, and records the operations of each communicator; \
each process writes FOLDER/rankN.json at its end, at an error or an abort, at SIGTERM, SIGINT, and SIGUSR1, or the signal that \
LIBNCCL_RECORDER_SIGNAL names: `nccl recorder diff --pid` sends it (docs/hangs.md).

Examples:
  nccl trace -- python3 train.py
  nccl run -n 4 -- nccl trace --output /tmp/job -- ./program
  nccl recorder diff /tmp/job

Exit status:
  N    That of the program
  1    The program cannot be started, or libnccl-trace.so is not found
  2    Invalid command line";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct TraceArguments {
    /// Write the recordings into this folder, the same for all ranks [default: nccl-trace-ID, by the job's id or else the
    /// process id]
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// Keep the last N operations of each communicator, of 64 bytes each
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole::<usize>(1..=1 << 20))]
    pub(crate) entries: usize,
    /// Pass calls on to this NCCL library [default: that of `LIBNCCL_PATH`, or the one that the program would find]
    #[arg(long, value_name = "PATH")]
    pub(crate) library: Option<PathBuf>,
    /// Use this libnccl-trace.so [default: libnccl-trace/libnccl-trace.so beside this program, or in ../lib]
    #[arg(long, value_name = "PATH")]
    pub(crate) recorder: Option<PathBuf>,
    /// Program to run, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) program: Vec<OsString>,
}

//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::bench::BenchArguments;
use crate::completions::CompletionsArguments;
use crate::doctor::arguments::DoctorArguments;
use crate::env::EnvArguments;
use crate::man::ManArguments;
use crate::ras::arguments::RasArguments;
use crate::recorder::arguments::RecorderArguments;
use crate::value_parser::{MAX_RANKS, whole};
use crate::{exit_status, version};

const EXAMPLES: &str = "\
Examples:
  nccl doctor                                 is there anything to do before a job starts?
  nccl bench all_reduce --ranks 4             is it right, and how fast?
  nccl run -n 4 -- python3 train.py           start the ranks of a program on this host";

const RUN_HELP: &str = "\
Each rank gets the variables of torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and others. If one fails, \
the others get SIGTERM, and SIGKILL 10 s later. No process remains, however the program ends.

Example:
  nccl run -n 4 --cpu=/tmp/cpu-nccl -- python3 train.py

Exit status:
  0    All ranks succeeded
  N    That of the first rank that failed; 128 and its number if a signal ended it
  1    A failure of nccl run itself
  2    Invalid command line
  141  The reader of the output closed it";

/// Diagnose and measure NCCL.
#[derive(Debug, Parser)]
#[command(name = "nccl", version, long_version = version::long(), propagate_version = true)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit_status::HELP))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure an operation and check its results, as nccl-tests does
    Bench(Box<BenchArguments>),
    /// Report what a job of NCCL would find on this machine, and what to do
    Doctor(DoctorArguments),
    /// List the variables that the library reads, their values and where these come from
    Env(EnvArguments),
    /// Report which ranks of a running job are late, stuck, failed or dead
    Ras(RasArguments),
    /// Compare what the ranks of a job have recorded
    Recorder(RecorderArguments),
    /// Start the ranks of a program on this host
    Run(RunArguments),
    /// Print the completions of a shell
    Completions(CompletionsArguments),
    /// Write the manual pages
    Man(ManArguments),
}

#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArguments {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>(1..=MAX_RANKS))]
    pub(crate) ranks: usize,
    /// Put the CPU implementation of NCCL, and the stand-in for CUDA, before other libraries; from DIR, which
    /// `cargo xtask cpu-so DIR` makes [default: libnccl-cpu beside this program, or in ../lib]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    pub(crate) cpu: Option<Option<PathBuf>>,
    /// Write the output to `DIR/attempt_A/RANK/stdout.log` and `stderr.log` as well
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Start all ranks again if one fails, at most N times
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) restart: u32,
    /// Program to run, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}

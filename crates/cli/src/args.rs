//! The command line.

use std::env::consts::{ARCH, OS};
use std::sync::LazyLock;

use clap::{Parser, Subcommand};
use libnccl::Version;

use crate::bench::BenchArguments;
use crate::completions::{CompletionsArguments, ManArguments};
use crate::doctor::DoctorArguments;
use crate::env::EnvArguments;
use crate::ras::RasArguments;
use crate::recorder::RecorderArguments;
use crate::run::RunArguments;
use crate::trace::TraceArguments;

/// The end of every help text. Clap exits with status 2.
pub(crate) const EXIT_STATUS: &str = "\
Exit status:
  0    Success
  1    Failure; for bench also wrong results, for doctor also a problem
  2    Invalid command line
  141  The reader of the output closed it, as in `nccl ... | head -1`";

const EXAMPLES: &str = "\
Examples:
  nccl doctor                                 is there anything to do before a job starts?
  nccl bench all_reduce --ranks 4             is it right, and how fast?
  nccl run -n 4 -- python3 train.py           start the ranks of a program on this host";

/// Diagnose and measure NCCL.
#[derive(Debug, Parser)]
// A name that does not depend on how it was started, which may be /proc/self/exe.
#[command(name = "nccl", bin_name = "nccl", version, long_version = LONG_VERSION.as_str(), propagate_version = true)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", EXIT_STATUS))]
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
    /// Record the operations of any program
    Trace(TraceArguments),
    /// Print the completions of a shell
    Completions(CompletionsArguments),
    /// Write the manual pages
    Man(ManArguments),
}

/// The version, and what the program was built with.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = if cfg!(feature = "link") { "dlopen, link, cpu" } else { "dlopen, cpu" };
    let environment = if cfg!(target_env = "gnu") { "-gnu" } else { "" };
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let version = env!("CARGO_PKG_VERSION");
    let header = Version::HEADER;
    format!(
        "{version}\nlibnccl:  {version}\nheader:   NCCL {header}\nfeatures: {features}\ntarget:   {ARCH}-{OS}{environment}, {profile}"
    )
});

//! The command line, its completions in a shell, and its manual pages.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use clap::{Arg, Command, Parser, Subcommand, ValueHint};
use clap_complete::{Shell, generate};
use libnccl::Version;

use crate::bench::BenchArguments;
use crate::doctor::DoctorArguments;
use crate::env::EnvArguments;
use crate::ras::RasArguments;
use crate::recorder::RecorderCommand;
use crate::run::RunArguments;
use crate::trace::TraceArguments;

/// Diagnose and measure NCCL.
#[derive(Debug, Parser)]
// A fixed name, because the program may have been started as /proc/self/exe.
#[command(name = "nccl", bin_name = "nccl", version, long_version = LONG_VERSION.as_str(), propagate_version = true)]
#[command(after_help = include_str!("help/nccl.txt").trim_end())]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Subcommands,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Subcommands {
    /// Measure an operation and check its results, as nccl-tests does
    Bench(Box<BenchArguments>),
    /// Report what a job of NCCL would find on this machine, and what to do
    Doctor(DoctorArguments),
    /// List the variables that the library reads, their values and where these come from
    Env(EnvArguments),
    /// Report which ranks of a running job are late, stuck, failed or dead
    Ras(RasArguments),
    /// Compare what the ranks of a job have recorded
    #[command(subcommand)]
    Recorder(RecorderCommand),
    /// Start the ranks of a program on this host
    Run(RunArguments),
    /// Record the operations of any program
    Trace(TraceArguments),
    /// Print the completions of a shell
    #[command(after_help = include_str!("help/completions.txt").trim_end())]
    Completions {
        /// Shell that reads them
        #[arg(value_enum, value_name = "SHELL")]
        shell: Shell,
    },
    /// Write the manual pages
    #[command(after_help = "Example:\n  nccl man ~/.local/share/man/man1 && man nccl-doctor")]
    Man {
        /// Directory to write them into; created if need be
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
}

/// The version, and the features of the build.
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

pub(crate) fn completions(shell: Shell, mut command: Command) -> Result<ExitCode> {
    command.build();
    // clap_complete panics if it cannot write.
    let mut text = Vec::new();
    generate(shell, &mut visible(&command), "nccl", &mut text);
    stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a built command without its hidden arguments, which are refused.
fn visible(command: &Command) -> Command {
    // The name must be static, and -V needs a version.
    Command::new(&*command.get_name().to_owned().leak())
        .version("")
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .disable_version_flag(true)
        .args(command.get_arguments().filter(|argument| !argument.is_hide_set()).map(without_files))
        .subcommands(command.get_subcommands().map(visible))
}

/// Disables completion with file names for an argument that is not a file: bash would offer files for numbers too.
fn without_files(argument: &Arg) -> Arg {
    let is_free = argument.get_action().takes_values() && argument.get_possible_values().is_empty();
    let has_hint = argument.get_value_hint() != ValueHint::Unknown;
    if is_free && !has_hint { argument.clone().value_hint(ValueHint::Other) } else { argument.clone() }
}

pub(crate) fn man(directory: &Path, command: Command) -> Result<ExitCode> {
    let failed = || format!("cannot write the manual pages into {}", directory.display());
    fs::create_dir_all(directory).with_context(failed)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), directory).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}

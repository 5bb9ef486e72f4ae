//! The program `nccl`: reports which NCCL a system has, and measures it or, without a GPU, the CPU backend.
//!
//! It is a library because cargo can compile a library, but not a program, while it still generates code for the dependencies.
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))] // libnccl reads variables.

mod bench;
mod doctor;
mod env;
mod file;
mod library;
mod nccl_file;
mod output;
mod preload;
mod ras;
mod recorder;
mod run;
mod settings;
mod system;
mod trace;
mod value_parser;

use std::env::consts::{ARCH, OS};
use std::ffi::OsString;
use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use clap::{Arg, Command, CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::{Shell, generate};
use libnccl::Version;

/// Diagnose and measure NCCL.
#[derive(Debug, Parser)]
// A fixed name, because the program may have been started as /proc/self/exe.
#[command(name = "nccl", bin_name = "nccl", version, long_version = LONG_VERSION.as_str(), propagate_version = true)]
#[command(after_help = include_str!("help/nccl.txt").trim_end())]
struct Arguments {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Measure an operation and check its results, as nccl-tests does
    Bench(Box<bench::BenchArguments>),
    /// Report what a job of NCCL would find on this machine, and what to do
    Doctor(doctor::DoctorArguments),
    /// List the variables that the library reads, their values and where these come from
    Env(env::EnvArguments),
    /// Report which ranks of a running job are late, stuck, failed or dead
    Ras(ras::RasArguments),
    /// Compare what the ranks of a job have recorded
    #[command(subcommand)]
    Recorder(recorder::RecorderCommand),
    /// Start the ranks of a program on this host
    Run(run::RunArguments),
    /// Record the operations of any program
    Trace(trace::TraceArguments),
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

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    libnccl_observe::Recorder::record_from_env();
    let result = match parse(bench::with_files_joined(std::env::args_os())).command {
        Subcommands::Bench(arguments) => bench::run(&arguments),
        Subcommands::Doctor(arguments) => doctor::run(&arguments),
        Subcommands::Env(arguments) => env::run(&arguments),
        Subcommands::Ras(arguments) => ras::run(&arguments),
        Subcommands::Recorder(command) => recorder::run(&command),
        Subcommands::Run(arguments) => run::run(&arguments),
        Subcommands::Trace(arguments) => trace::run(&arguments),
        Subcommands::Completions { shell } => completions(shell, Arguments::command()),
        Subcommands::Man { directory } => man(&directory, Arguments::command()),
    };
    result.unwrap_or_else(|error| {
        if output::is_closed(&error) {
            return output::CLOSED.into();
        }
        output::write_to_stderr(&format!("error: {error:#}\n"));
        ExitCode::FAILURE
    })
}

/// Parses the command line, or exits with clap's error, in which control characters are escaped.
fn parse(words: Vec<OsString>) -> Arguments {
    Arguments::try_parse_from(&words).unwrap_or_else(|error| {
        let escaped = words.iter().map(|word| output::in_line(&word.to_string_lossy()).into_owned());
        Arguments::try_parse_from(escaped).err().unwrap_or(error).exit()
    })
}

fn completions(shell: Shell, mut command: Command) -> Result<ExitCode> {
    command.build();
    // clap_complete panics if it cannot write.
    let mut text = Vec::new();
    generate(shell, &mut visible(&command), "nccl", &mut text);
    stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a built command without its hidden arguments.
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

fn man(directory: &Path, command: Command) -> Result<ExitCode> {
    let failed = || format!("cannot write the manual pages into {}", directory.display());
    fs::create_dir_all(directory).with_context(failed)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), directory).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}

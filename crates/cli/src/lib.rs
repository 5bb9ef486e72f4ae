//! The program `nccl`: reports which NCCL a system has, and measures it or, without a GPU, the CPU backend.
//!
//! It is a library because cargo compiles a library while code generation of its dependencies is in progress, and a program only
//! afterwards.
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))] // libnccl reads variables.

mod args;
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

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Arguments, Subcommands};

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
        Subcommands::Completions { shell } => args::completions(shell, Arguments::command()),
        Subcommands::Man { directory } => args::man(&directory, Arguments::command()),
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

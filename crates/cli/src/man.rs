//! `nccl man`: the manual pages, of the program and of each subcommand.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command, ValueHint};

const HELP: &str = "\
Example:
  nccl man ~/.local/share/man/man1 && man nccl-doctor";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ManArguments {
    /// Folder to write them into; created if need be
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    folder: PathBuf,
}

pub(crate) fn run(arguments: &ManArguments, command: Command) -> Result<ExitCode> {
    let folder = &arguments.folder;
    let failed = || format!("cannot write the manual pages into {}", folder.display());
    fs::create_dir_all(folder).with_context(failed)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), folder).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}

//! `nccl completions` and `nccl man`: the completions of a shell, and the manual pages.

use std::fs;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Arg, Args, Command, ValueHint};
use clap_complete::{Shell, generate};

const HELP: &str = "\
Examples:
  nccl completions bash > ~/.local/share/bash-completion/completions/nccl
  nccl completions zsh > ~/.zfunc/_nccl
  nccl completions fish > ~/.config/fish/completions/nccl.fish";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct CompletionsArguments {
    /// Shell that reads them
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn completions(arguments: &CompletionsArguments, mut command: Command) -> Result<ExitCode> {
    command.build();
    // It panics if it cannot write.
    let mut text = Vec::new();
    generate(arguments.shell, &mut visible(&command), "nccl", &mut text);
    stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a command that was built without its hidden arguments, which are refused.
fn visible(command: &Command) -> Command {
    // The name has to be static, and -V needs a version.
    Command::new(&*command.get_name().to_owned().leak())
        .version("")
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .disable_version_flag(true)
        .args(command.get_arguments().filter(|argument| !argument.is_hide_set()).map(without_files))
        .subcommands(command.get_subcommands().map(visible))
}

/// Returns an argument for which no files are offered, unless it is one: for a number, bash would offer those.
fn without_files(argument: &Arg) -> Arg {
    let is_unknown = argument.get_value_hint() == ValueHint::Unknown;
    let has_names = !argument.get_possible_values().is_empty();
    match argument.get_action().takes_values() && is_unknown && !has_names {
        true => argument.clone().value_hint(ValueHint::Other),
        false => argument.clone(),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nccl man ~/.local/share/man/man1 && man nccl-doctor")]
pub(crate) struct ManArguments {
    /// Folder to write them into; created if need be
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    folder: PathBuf,
}

pub(crate) fn man(arguments: &ManArguments, command: Command) -> Result<ExitCode> {
    let folder = &arguments.folder;
    let failed = || format!("cannot write the manual pages into {}", folder.display());
    fs::create_dir_all(folder).with_context(failed)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), folder).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}

//! `nccl completions`: the completions of a shell.

use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Command};
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

pub(crate) fn run(arguments: &CompletionsArguments, mut command: Command) -> Result<ExitCode> {
    // It panics if it cannot write.
    let mut text = Vec::new();
    generate(arguments.shell, &mut command, "nccl", &mut text);
    stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

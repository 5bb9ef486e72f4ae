//! The arguments of `nccl bench plot`.

use std::path::PathBuf;

use clap::Args;

const HELP: &str = "\
Example:
  nccl bench plot before.json after.json -o both.svg

Exit status:
  0    Success
  1    A result cannot be read, or the picture cannot be written
  2    Invalid command line";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct PlotArguments {
    /// Results of `nccl bench --json`
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// File to write, in SVG
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

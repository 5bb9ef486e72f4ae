//! The arguments of `nccl bench plot`.

use std::path::PathBuf;

use clap::Args;

const HELP: &str = "\
Example:
  nccl bench plot before.json after.json -o both.svg

The picture shows the times out of place: medians of single iterations if all results have them, otherwise the means of
the loops. `nccl bench compare` compares the same.

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

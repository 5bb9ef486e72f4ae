//! The arguments of `nccl bench plot`.

use std::path::PathBuf;

use clap::Args;

use crate::exit_status;

#[derive(Debug, Args)]
#[command(after_help = exit_status::HELP)]
pub(crate) struct PlotArguments {
    /// Results of `nccl bench --json`
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// File to write, in SVG
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

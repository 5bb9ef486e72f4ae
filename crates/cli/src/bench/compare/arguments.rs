//! The arguments of `nccl bench compare`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::bench::start::backend::Backend;
use crate::value_parser::whole;

const HELP: &str = "\
Examples:
  nccl bench compare before.json after.json --threshold 0.95
  nccl bench compare --backend link --backend dlopen -- all_reduce -b 8 -e 1M

The times are medians of single iterations if all results have them, otherwise the means of the loops. The ratio is their
quotient, A / B: above 1, B is faster. Of several rounds, the one with the median ratio is printed.

Exit status:
  0    No ratio is below the threshold
  1    A ratio is below the threshold, a result is wrong, or the results cannot be compared
  2    Invalid command line
  141  The reader of the output closed it";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct CompareArguments {
    /// Two results of `nccl bench --json`
    #[arg(
        value_name = "FILE",
        num_args = 2,
        conflicts_with = "backend",
        required_unless_present = "backend"
    )]
    pub(crate) files: Vec<PathBuf>,
    /// Measure with this backend and compare it; to be given twice, with the arguments of `nccl bench` after `--`
    #[arg(long, value_enum)]
    pub(crate) backend: Vec<Backend>,
    /// Number of measurements with each backend, in turn
    #[arg(long, default_value_t = 5, requires = "backend", value_parser = whole::<u32>(1..=1000))]
    pub(crate) rounds: u32,
    /// Fail if a ratio, the time of A divided by that of B, is below this
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub(crate) threshold: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Arguments of `nccl bench`: an operation and its options
    #[arg(value_name = "ARGUMENTS", last = true, requires = "backend")]
    pub(crate) measurement: Vec<OsString>,
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| ratio.is_finite() && *ratio > 0.0);
    ratio.ok_or_else(|| "expected a number above 0, such as 0.95".into())
}

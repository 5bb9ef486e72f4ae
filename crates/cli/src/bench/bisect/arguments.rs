//! The arguments of `nccl bench bisect`.

use clap::Args;

use crate::bench::start::arguments::RankArguments;
use crate::value_parser::{size, whole};

const HELP: &str = "\
Examples:
  nccl bench bisect --ranks 8
  srun nccl bench bisect --deadline 60

Exit status:
  0    No rank is slow, wrong or hanging
  1    One is, and is named; or a failure
  2    Invalid command line
  130  Ctrl-C, after the groups that were measured; 143 for SIGTERM
  141  The reader of the output closed it";

#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct BisectArguments {
    #[command(flatten)]
    pub(crate) ranks: RankArguments,
    /// Size of the buffers that bandwidth is measured with [default: 1M on the CPU, 64M on GPUs]
    #[arg(short, long, value_parser = size)]
    pub(crate) size: Option<u64>,
    /// All-reduces of each group and size
    #[arg(short = 'n', long, default_value_t = 40, value_parser = whole::<u32>(1..=1_000_000))]
    pub(crate) iters: u32,
    /// A group is slow if it takes so many times as long as the fastest of its size
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0, value_parser = factor)]
    pub(crate) slower: f64,
    /// A group hangs if a call takes longer
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = whole::<u64>(1..=86_400))]
    pub(crate) deadline: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 1.0);
    factor.ok_or_else(|| "expected a number above 1".into())
}

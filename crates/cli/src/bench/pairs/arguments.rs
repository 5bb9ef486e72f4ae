//! The arguments of `nccl bench pairs`.

use std::path::PathBuf;

use clap::Args;

use crate::bench::start::arguments::RankArguments;
use crate::value_parser::{size, whole};

const HELP: &str = "\
Examples:
  nccl bench pairs --ranks 8 --svg pairs.svg
  nccl bench pairs --min-bandwidth 20 --max-latency 30 && srun training

Exit status:
  0    All pairs keep the limits, and all messages arrived unchanged
  1    A pair misses a limit, a message arrived changed, or a failure
  2    Invalid command line
  130  Ctrl-C, after the output of what was measured; 143 for SIGTERM
  141  The reader of the output closed it";

#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct PairsArguments {
    #[command(flatten)]
    pub(crate) ranks: RankArguments,
    /// Size of the messages that bandwidth is measured with [default: 4M on the CPU, 64M on GPUs]
    #[arg(short, long, value_parser = size)]
    pub(crate) size: Option<u64>,
    /// Messages of each direction of a pair
    #[arg(short = 'n', long, default_value_t = 20, value_parser = whole::<u32>(1..=1_000_000))]
    pub(crate) iters: u32,
    /// Fail if a bandwidth is below so many GB/s
    #[arg(long, value_name = "GB/S")]
    pub(crate) min_bandwidth: Option<f64>,
    /// Fail if a latency is above so many microseconds
    #[arg(long, value_name = "US")]
    pub(crate) max_latency: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw both matrices as heat maps
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

//! The command line of `nccl ras`.

use std::time::Duration;

use clap::{Args, ValueEnum};

const HELP: &str = "\
Every process of a job answers at NCCL_RAS_ADDR (NCCL 2.24 and newer; verdicts need 2.28.7). The CPU backend does \
if NCCL_RAS_ENABLE=1 is set.

Examples:
  nccl ras                                   the job on this host: who is late, stuck, failed or dead?
  nccl ras --addr node7:28028 --watch 10     the same every 10 s, of a job that node7 is or will be part of
  nccl ras monitor                           processes that join or die, as it happens
  nccl ras --prometheus                      metrics for node_exporter's textfile collector

Exit status:
  0    Nothing is wrong
  1    No report: no process listens, none answers, or no communicator is ready
  2    Invalid command line
  3    Something is wrong, or missing in the report, which the first lines name
  141  The reader of the output closed it";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RasArguments {
    #[arg(value_enum, default_value_t = Action::Status)]
    pub(crate) action: Action,
    /// Also print the job's own report, and all lines about ranks
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print JSON, of status and monitor
    #[arg(long)]
    pub(crate) json: bool,
    /// Print metrics in Prometheus's text format
    #[arg(long, conflicts_with_all = ["json", "verbose", "watch"])]
    pub(crate) prometheus: bool,
    /// Repeat, with so many seconds between reports, and wait for a job that is not there
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) watch: Option<Duration>,
    /// Address of the job, host:port [default: `NCCL_RAS_ADDR`, or localhost:28028]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) addr: Option<String>,
    /// Time in which each answer has to come
    #[arg(long, value_name = "SECONDS", default_value = "11", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Action {
    /// Take some reports within a second, and conclude
    Status,
    /// Print what happens to processes until the job ends
    Monitor,
    /// Let the job check its GPUs, drivers and environment (NCCL 2.31)
    Diagnostics,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let valid = seconds.filter(|seconds| !seconds.is_zero());
    valid.ok_or_else(|| "expected a number of seconds above 0".into())
}

//! `nccl bench pairs`: bandwidth and latency between every two ranks.

mod exchange;
mod heat_map;
mod matrix;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};
use clap::Args;

use super::arguments::refuse;
use super::compare::ratio;
use super::output::{conclude, exit_code};
use super::start::{Job, RankArguments, Start};
use crate::value_parser::{size, whole};
use crate::{named_file, output};
use matrix::Pairs;

const HELP: &str = "\
Examples:
  nccl bench pairs --ranks 8 --svg pairs.svg
  nccl bench pairs --min-bandwidth 20 --max-latency 30 && srun training

Exit status:
  0    All pairs are within the limits, and all data arrived unchanged
  1    A pair is beyond a limit, data arrived changed, or a failure
  2    Invalid command line
  130  Ctrl-C, after the output of what was measured; 143 for SIGTERM
  141  The reader of the output closed it";

#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct PairsArguments {
    #[command(flatten)]
    pub(crate) ranks: RankArguments,
    /// Bytes of each send that bandwidth is measured with [default: 4M on the CPU, 64M on GPUs]
    #[arg(short, long, value_parser = size)]
    pub(crate) size: Option<u64>,
    /// Sends in each direction of a pair
    #[arg(short = 'n', long, default_value_t = 20, value_parser = whole::<u32>(1..=1_000_000))]
    pub(crate) iters: u32,
    /// Fail if a bandwidth is below this many GB/s
    #[arg(long, value_name = "GB/S", value_parser = ratio)]
    pub(crate) min_bandwidth: Option<f64>,
    /// Fail if a latency is above this many microseconds
    #[arg(long, value_name = "US", value_parser = ratio)]
    pub(crate) max_latency: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw both matrices as heat maps
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// The number of links that an error names at most.
const MAX_NAMED: usize = 8;

/// The pairs that rank 0 has measured, until they are printed.
type Measured = Arc<Mutex<Option<Pairs>>>;

/// Measures one pair after the other, so that none disturbs another.
pub(crate) fn run(arguments: &PairsArguments) -> Result<ExitCode> {
    if arguments.json {
        output::keep_libraries_out()?;
    }
    let start = Start::new(&arguments.ranks, None)?;
    if arguments.ranks.ranks == Some(1) {
        refuse::<PairsArguments>("nccl bench pairs", "--ranks 1: expected a whole number from 2 to 1024");
    }
    let (processes, threads) = start.processes_and_threads();
    ensure!(
        processes * threads > 1,
        "there is one GPU, and --ranks is not given: expected at least two ranks"
    );
    let job = start.join(threads, 1)?;
    if let (0, Some(reason)) = (job.rank(0), &job.fallback) {
        output::write_to_stderr(&format!("{reason}\n"));
    }
    let measured = Measured::default();
    let (interrupted, also) = (measured.clone(), arguments.clone());
    // An output that cannot be written changes nothing about the signal.
    let complete = move || drop(take(&interrupted).map(|pairs| write(&pairs, &also)));
    let own = arguments.clone();
    let work = move |job: &Job, thread| {
        if job.rank(thread) > 0 {
            return exchange::measure(job, thread, &own, &measured).map(|()| true);
        }
        own.svg.as_deref().map_or(Ok(()), named_file::check)?;
        exchange::measure(job, thread, &own, &measured)?;
        // A signal may have taken them, and ends this process.
        take(&measured).map_or(Ok(true), |pairs| write(&pairs, &own))
    };
    job.run(complete, work).map(exit_code)
}

fn take(measured: &Measured) -> Option<Pairs> {
    let mut pairs = lock(measured).take()?;
    pairs.judge();
    Some(pairs)
}

fn lock(measured: &Measured) -> MutexGuard<'_, Option<Pairs>> {
    measured.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints the pairs and the links that are wrong or beyond the limits, then draws the pairs. Returns whether there is no such
/// link.
fn write(pairs: &Pairs, arguments: &PairsArguments) -> Result<bool> {
    let printed = output::print(pairs, arguments.json);
    let mut problems = pairs.problems(arguments.min_bandwidth, arguments.max_latency);
    let is_good = problems.is_empty();
    let more = problems.len().saturating_sub(MAX_NAMED);
    problems.truncate(MAX_NAMED);
    problems.extend((more > 0).then(|| format!("and {more} more")));
    if !is_good {
        output::write_to_stderr(&format!("error: {}\n", problems.join("; ")));
    }
    let draw = |file| named_file::write(file, heat_map::draw(pairs)?.as_bytes());
    conclude(is_good, [printed, arguments.svg.as_deref().map_or(Ok(()), draw)])
}

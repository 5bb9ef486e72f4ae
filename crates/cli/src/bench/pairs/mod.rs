//! `nccl bench pairs`: bandwidth and latency between every two ranks.

mod matrix;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use itertools::Itertools;
use libnccl::{Config, DataType, ReduceOp};

use super::arguments::refuse;
use super::compare::ratio;
use super::data::{Arithmetic, Data, Reduction};
use super::measure::memory::{Buffer, Memory};
use super::measure::ranks::{Rank, Ranks, available_bytes};
use super::output::{conclude, exit_code, progress_bar};
use super::start::{Job, RankArguments, Start};
use crate::value_parser::{size, whole};
use crate::{file, output};
use matrix::{Link, Pairs};

#[derive(Debug, Clone, Args)]
#[command(after_help = include_str!("../../help/pairs.txt").trim_end())]
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

const MAX_NAMED: usize = 8;

/// The measurements of a link. The best one counts, because other load only makes measurements worse.
const BATCHES: usize = 10;

/// The elements of a send whose time is the latency: 8 bytes.
const SHORT: usize = 2;

/// The pairs measured by rank 0, until they are printed.
type Measured = Arc<Mutex<Option<Pairs>>>;

/// Measures one pair after the other, so that they do not disturb each other.
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
    // The signal ends the process even if the output cannot be written.
    let complete = move || drop(take(&interrupted).map(|pairs| write(&pairs, &also)));
    let own = arguments.clone();
    let work = move |job: &Job, thread| {
        if job.rank(thread) > 0 {
            return measure(job, thread, &own, &measured).map(|()| true);
        }
        own.svg.as_deref().map_or(Ok(()), file::check)?;
        measure(job, thread, &own, &measured)?;
        // The signal thread may have taken them, and ends this process.
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

/// Prints the pairs and their problems, then draws the pairs. Returns whether there is no problem.
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
    let draw = |file| file::write(file, matrix::draw(pairs)?.as_bytes());
    conclude(is_good, [printed, arguments.svg.as_deref().map_or(Ok(()), draw)])
}

struct Endpoint {
    send: Buffer,
    recv: Buffer,
    data: Data,
    /// The elements of a long send, and the number of sends of a batch.
    elements: usize,
    repeats: usize,
}

/// Measures all pairs, one after the other. Rank 0 stores them in `measured`.
fn measure(job: &Job, thread: usize, arguments: &PairsArguments, measured: &Measured) -> Result<()> {
    let bytes = arguments.size.unwrap_or(if job.gpus == 0 { 4 << 20 } else { 64 << 20 });
    let elements = (usize::try_from(bytes)? / size_of::<f32>()).max(SHORT);
    let repeats = (arguments.iters as usize).div_ceil(BATCHES);
    let memory = Memory::of(job.local_rank(thread), job.gpus, false)?;
    let mut ranks = Ranks::new(job, thread, vec![memory], &Config::new())?;
    let available = available_bytes(&ranks.describe()?);
    let own = job.rank(thread);
    if bytes > available / 2 {
        let room = format!("each rank has {available} bytes of memory for two buffers");
        ensure!(own > 0, "--size {bytes} does not fit: {room}");
        return Ok(());
    }
    let memory = &ranks.members[0].memory;
    let buffer = || memory.buffer(&job.nccl, DataType::Float32, elements);
    let arithmetic = Arithmetic::new(DataType::Float32)?;
    let data = Data { arithmetic, op: Reduction::Op(ReduceOp::Sum), ranks: job.size, seed: 0 };
    let mut endpoint = Endpoint { send: buffer()?, recv: buffer()?, data, elements, repeats };
    endpoint.send.fill(0..elements, &data.sent(own))?;
    let mut progress = None;
    if own == 0 {
        let bytes = (elements * size_of::<f32>()) as u64;
        let device = memory.device()?.unwrap_or_else(|| "host memory".into());
        let pairs = Pairs::new(job, device, bytes, repeats * BATCHES);
        progress = Some(progress_bar(Some(pairs.number() as u64), "pairs"));
        *lock(measured) = Some(pairs);
    }
    ranks.barrier()?;
    for (low, high) in (0..job.size).tuple_combinations() {
        let rank = &ranks.members[0];
        let side = match own {
            own if own == low => endpoint.exchange(rank, high)?,
            own if own == high => endpoint.exchange(rank, low)?,
            _ => Link::default(),
        };
        // The others wait for the pair, too.
        let sides = ranks.gather(&[side])?;
        let Some(progress) = &progress else { continue };
        let link = |from: usize, to: usize| Link {
            latency_us: sides[low].latency_us,
            median_latency_us: sides[low].median_latency_us,
            wrong: sides[to].wrong,
            first_wrong: sides[to].first_wrong,
            ..sides[from].clone()
        };
        // The signal thread may have taken them.
        if let Some(pairs) = lock(measured).as_mut() {
            pairs.links[low][high] = Some(link(low, high));
            pairs.links[high][low] = Some(link(high, low));
        }
        progress.set_message(format!("ranks {low} and {high}"));
        progress.inc(1);
    }
    ranks.destroy()
}

impl Endpoint {
    /// Measures this rank's side of a pair: the latency, the bandwidth of its sends, and the mismatches in received data.
    fn exchange(&mut self, rank: &Rank, peer: usize) -> Result<Link> {
        let is_first = rank.communicator.rank() < peer;
        self.recv.fill(0..self.elements, &self.data.untouched())?;
        // NCCL connects at the first send.
        self.round_trip(rank, peer, is_first)?;
        let mut side = Link::default();
        for sends in [is_first, !is_first] {
            self.stream(rank, peer, 1, sends)?;
            if !sends {
                wait(rank)?;
                let comparison = self.recv.compare(0..self.elements, &self.data.sent(peer))?;
                side.wrong = comparison.wrong as u64;
                side.first_wrong = comparison.first.map(|first| first.offset as u64);
            }
        }
        let mut latencies = vec![];
        for _ in 0..BATCHES {
            let begin = Instant::now();
            for _ in 0..self.repeats {
                self.round_trip(rank, peer, is_first)?;
            }
            wait(rank)?;
            latencies.push(begin.elapsed().as_secs_f64() * 1e6 / self.repeats as f64 / 2.0);
        }
        let mut bandwidths = vec![];
        for sends in [is_first, !is_first] {
            for _ in 0..BATCHES {
                let begin = Instant::now();
                self.stream(rank, peer, self.repeats, sends)?;
                wait(rank)?;
                if sends {
                    let bytes = (self.elements * size_of::<f32>() * self.repeats) as f64;
                    bandwidths.push(bytes / 1e9 / begin.elapsed().as_secs_f64());
                }
            }
        }
        latencies.sort_by(f64::total_cmp);
        bandwidths.sort_by(|one, two| two.total_cmp(one));
        (side.latency_us, side.median_latency_us) = (latencies[0], latencies[BATCHES / 2]);
        (side.bandwidth, side.median_bandwidth) = (bandwidths[0], bandwidths[BATCHES / 2]);
        Ok(side)
    }

    fn round_trip(&mut self, rank: &Rank, peer: usize, is_first: bool) -> Result<()> {
        for sends in [is_first, !is_first] {
            self.start(rank, peer, SHORT, sends)?;
        }
        Ok(())
    }

    /// Sends a large buffer and receives 8 bytes as the receipt, or does the opposite.
    fn stream(&mut self, rank: &Rank, peer: usize, repeats: usize, sends: bool) -> Result<()> {
        for _ in 0..repeats {
            self.start(rank, peer, self.elements, sends)?;
        }
        self.start(rank, peer, SHORT, !sends)
    }

    fn start(&mut self, rank: &Rank, peer: usize, count: usize, sends: bool) -> Result<()> {
        let (communicator, stream) = (&rank.communicator, rank.memory.stream());
        if sends {
            communicator.send(self.send.part(0..count)?, peer, stream)?;
        } else {
            communicator.recv(self.recv.part_mut(0..count)?, peer, stream)?;
        }
        Ok(())
    }
}

fn wait(rank: &Rank) -> Result<()> {
    rank.memory.synchronize(&rank.communicator)
}

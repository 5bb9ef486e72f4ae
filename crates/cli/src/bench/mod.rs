//! `nccl bench`: the measurements of nccl-tests, without MPI or a CUDA toolkit, on GPUs or on the CPU.

mod arguments;
mod benchmark;
mod compare;
mod data;
mod measure;
mod output;
mod pairs;
mod parameters;
mod plot;
mod start;
mod statistics;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use itertools::Itertools;
use libnccl::{Config, Version};

use crate::output::{keep_libraries_out, write_to_stderr};
use crate::system::environment;
use arguments::{MeasureArguments, refuse};
use benchmark::Benchmark;
use compare::CompareArguments;
use measure::Work;
use measure::memory::Memory;
use measure::ranks::{Description, Ranks, available_bytes};
use output::{Output, exit_code};
use pairs::PairsArguments;
use parameters::{Case, Parameters};
use plot::PlotArguments;
use start::{Job, Start};

#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/bench.txt").trim_end(), disable_version_flag = true)] // -V is an option of nccl-tests.
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(allow_negative_numbers = true)] // A negative number is an invalid value, not an unknown option.
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    /// The arguments of a measurement; clap requires an operation if there is no subcommand.
    #[command(flatten)]
    measure: Option<MeasureArguments>,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Compare two results, of nccl bench or nccl-tests, or two backends
    Compare(CompareArguments),
    /// Measure bandwidth and latency between every two ranks
    Pairs(PairsArguments),
    /// Draw bandwidth and time of one or several results
    Plot(PlotArguments),
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    match (&arguments.command, &arguments.measure) {
        (Some(BenchCommand::Compare(arguments)), _) => compare::run(arguments),
        (Some(BenchCommand::Pairs(arguments)), _) => pairs::run(arguments),
        (Some(BenchCommand::Plot(arguments)), _) => plot::run(arguments),
        (None, Some(arguments)) => benchmark(arguments),
        (None, None) => bail!("no operation is given"),
    }
}

fn benchmark(arguments: &MeasureArguments) -> Result<ExitCode> {
    if [&arguments.json, &arguments.csv].contains(&&Some(None)) {
        keep_libraries_out()?;
    }
    let start = Start::new(&arguments.ranks, arguments.backend)?;
    let parameters = Parameters::new(arguments, start.gpus, start.processes_and_threads());
    let parameters = start::check(&start.launch, parameters)
        .unwrap_or_else(|problem| refuse::<MeasureArguments>("nccl bench", problem));
    let first = parameters.first().context("nothing to measure")?;
    let mut job = start.join(first.threads, first.ranks_per_thread)?;
    let (output, benchmark, rank) = (Output::new(arguments), first.benchmark, job.rank(0));
    if rank == 0 {
        job.fallback.as_deref().map_or(Ok(()), |reason| output.note(reason))?;
        name_variables_of_nccl_tests();
    }
    let own = output.clone();
    let interrupt = move || own.interrupt();
    if first.procedure.timeout > 0 {
        let (timeout, interrupt) = (Duration::from_secs(first.procedure.timeout), interrupt.clone());
        job.operations = Some(start::watch(timeout, move || {
            interrupt();
            let problem = format!("rank {rank}: {benchmark}: nothing has ended for {timeout:?}");
            write_to_stderr(&format!("error: {problem}\n"));
            start::exit(1)
        })?);
    }
    job.run(interrupt, move |job, thread| measure_all(job, thread, &parameters, &output)).map(exit_code)
}

/// Warns of set variables of nccl-tests, because this program ignores them.
fn name_variables_of_nccl_tests() {
    for name in environment().into_keys().filter(|name| name.starts_with("NCCL_TESTS_")) {
        let problem = format!("{name} is ignored: nccl bench does not read the variables of nccl-tests");
        write_to_stderr(&format!("warning: {problem}\n"));
    }
}

/// Returns the words of a command line, with `--json FILE` joined to `--json=FILE`, and likewise for `--csv`. Clap would also
/// take the operation in `nccl bench --json all_reduce` as a file.
pub(crate) fn with_files_joined(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = vec![];
    for word in words {
        let name = word.to_str().unwrap_or_default();
        let is_file = !word.as_bytes().starts_with(b"-")
            && !BenchCommand::has_subcommand(name)
            && <Benchmark as ValueEnum>::from_str(name, false).is_err();
        // Subcommands' options of these names take no file, and other programs' options are unknown.
        let is_measurement = matches!(&joined[..], [_, command, first, ..]
            if command == "bench" && !first.to_str().is_some_and(BenchCommand::has_subcommand));
        match joined.last_mut().filter(|last| is_measurement && (*last == "--json" || *last == "--csv")) {
            Some(option) if is_file => option.extend(["=".as_ref(), &*word]),
            _ => joined.push(word),
        }
    }
    joined
}

/// Runs all measurements on the ranks of one thread, one data type after another. The thread of rank 0 prints, and returns
/// whether all results are correct. Other threads return `true`.
fn measure_all(job: &Job, thread: usize, all: &[Parameters], output: &Output) -> Result<bool> {
    let first = all.first().context("nothing to measure")?;
    let memory = |member| Memory::of(job.local_rank(thread) + member, job.gpus, first.procedure.stream_null);
    let memories = (0..job.ranks_per_thread).map(memory).collect::<Result<Vec<_>>>()?;
    let free = free_bytes(memories.iter())?;
    let mut ranks = Ranks::new(job, thread, memories, &config(job, first))?;
    let created = ranks_free_bytes(&ranks)?;
    let descriptions = ranks.describe()?;
    let has_one_clock = descriptions.iter().map(|one| &one.rank.host).all_equal();
    let prints = job.rank(thread) == 0;
    let Some(all) = fitting(&descriptions, all, prints)? else { return Ok(true) };
    if prints {
        output.begin(job, &all, &descriptions)?;
    }
    let mut buffers = 0;
    for parameters in all.chunk_by(|one, other| one.data_type == other.data_type) {
        buffers += rows(&mut ranks, parameters, prints.then_some(output), has_one_clock)?;
    }
    let usage = if first.columns.memory {
        let own = [free - created, buffers, created - buffers - ranks_free_bytes(&ranks)?];
        let all = ranks.gather(&vec![own; ranks.members.len()])?;
        // The maximum over all threads.
        Some(all.into_iter().fold(own, |most, used| [0, 1, 2].map(|part| most[part].max(used[part]))))
    } else {
        None
    };
    let is_right = if prints { output.finish(usage)? } else { true };
    ranks.destroy()?;
    Ok(is_right)
}

/// Limits the sizes of the parameters to those that fit into memory. If none fits, fails on rank 0 and returns `None` on others.
fn fitting(ranks: &[Description], all: &[Parameters], is_first: bool) -> Result<Option<Vec<Parameters>>> {
    let available = available_bytes(ranks);
    let first = all.first().context("nothing to measure")?;
    // A send buffer and a receive buffer. GPU memory is not freed before the exit.
    let types = all.chunk_by(|one, other| one.data_type == other.data_type).count() as u64;
    let buffers = if first.gpus > 0 { 2 * types } else { 2 };
    let misaligned = (first.unalign * size_of::<u64>()) as u64;
    let fitting_bytes =
        (available / buffers).saturating_sub(misaligned) / u64::from(first.procedure.agg_iters);
    if first.last_size() <= fitting_bytes {
        return Ok(Some(all.to_vec()));
    }
    if first.min_bytes > fitting_bytes {
        ensure!(
            !is_first,
            "cannot allocate buffers for --minbytes {}: each rank has {available} bytes of memory, enough for {buffers} \
             buffers of {fitting_bytes} bytes",
            first.min_bytes
        );
        return Ok(None);
    }
    Ok(Some(all.iter().map(|parameters| Parameters { fitting_bytes, ..parameters.clone() }).collect()))
}

/// Measures all sizes of one data type, one row each. Returns the bytes of GPU memory that the buffers use.
fn rows(ranks: &mut Ranks, all: &[Parameters], output: Option<&Output>, has_one_clock: bool) -> Result<i64> {
    let free = ranks_free_bytes(ranks)?;
    let mut work = Work::new(ranks, &all[0], has_one_clock)?;
    let bytes = free - ranks_free_bytes(work.ranks)?;
    let mut seed = 0;
    for parameters in all {
        work.warm_up(parameters)?;
        let mut cycle = 0;
        while parameters.procedure.run_cycles == 0 || cycle < parameters.procedure.run_cycles {
            for bytes in parameters.sizes() {
                let case = Case { parameters, shape: parameters.shape(bytes)?, in_place: false };
                let out_of_place = work.measure(case, seed)?;
                let mut in_place = || work.measure(Case { in_place: true, ..case }, seed + 1);
                // nccl-tests measures operations without this form in place too, with undefined results.
                let has_in_place = parameters.benchmark.operation().in_place_form().is_some();
                let in_place = has_in_place.then(&mut in_place).transpose()?;
                seed += 2;
                if let Some(output) = output {
                    output.row(case, &[Some(out_of_place), in_place])?;
                }
            }
            cycle = cycle.wrapping_add(1);
        }
    }
    work.finish()?;
    Ok(bytes)
}

fn config(job: &Job, parameters: &Parameters) -> Config {
    let mut config = Config::new();
    if let Some(policy) = parameters.procedure.cta_policy {
        config = config.cta_policy(policy);
    }
    // As nccl-tests does for sendrecv, where a rank has two peers.
    let peers_since = Version::new(2, 30, 3);
    if parameters.benchmark == Benchmark::SendRecv && job.gpus > 0 && job.nccl.version() >= peers_since {
        config = config.max_p2p_peers(2);
    }
    config
}

fn ranks_free_bytes(ranks: &Ranks) -> Result<i64> {
    free_bytes(ranks.members.iter().map(|member| &member.memory))
}

/// Returns the smallest number of free bytes on these GPUs; 0 for host memory.
fn free_bytes<'m>(memories: impl Iterator<Item = &'m Memory>) -> Result<i64> {
    memories.map(Memory::free_bytes).try_fold(i64::MAX, |least, free| Ok(least.min(free?)))
}

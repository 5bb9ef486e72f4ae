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
mod session;
mod start;
mod statistics;
mod svg;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};

use crate::output::{keep_libraries_out, write_to_stderr};
use crate::system::environment;
use arguments::{MeasureArguments, refuse};
use benchmark::Benchmark;
use compare::CompareArguments;
use output::{Output, exit_code};
use pairs::PairsArguments;
use parameters::Parameters;
use plot::PlotArguments;
use start::Start;

const HELP: &str = "\
Examples:
  nccl bench all_reduce -b 8 -e 128M -f 2 -g 8     one thread with 8 GPUs, as nccl-tests does it
  nccl bench sendrecv --cpu --ranks 4 --json out.json

Exit status:
  0    Success
  1    Failure, or wrong results
  2    Invalid command line
  130  Ctrl-C, after the output of what was measured; 143 for SIGTERM
  141  The reader of the output closed it, as in `nccl ... | head -1`";

#[derive(Debug, Args)]
#[command(after_help = HELP, disable_version_flag = true)] // -V is an option of nccl-tests.
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
    job.run(interrupt, move |job, thread| session::run(job, thread, &parameters, &output)).map(exit_code)
}

/// Names the variables of nccl-tests that are set, as a run by nccl-tests would differ.
fn name_variables_of_nccl_tests() {
    for name in environment().into_keys().filter(|name| name.starts_with("NCCL_TESTS_")) {
        let problem = format!("{name} is ignored: nccl bench does not read the variables of nccl-tests");
        write_to_stderr(&format!("warning: {problem}\n"));
    }
}

/// Returns the words of a command line with `=` between `--json` or `--csv` and a file that follows. Clap takes a file without `=`
/// too, but then also the operation of `nccl bench --json all_reduce`.
pub(crate) fn with_files_joined(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = vec![];
    let mut words = words.peekable();
    let is_name = |word: &OsStr| {
        let name = word.to_str().unwrap_or_default();
        BenchCommand::has_subcommand(name) || <Benchmark as ValueEnum>::from_str(name, false).is_ok()
    };
    while let Some(word) = words.next() {
        let is_option = word == "--json" || word == "--csv";
        joined.push(word);
        // What subcommands have by these names takes no file, and other programs may have anything.
        let is_measurement = joined.get(1).is_some_and(|word| word == "bench")
            && joined.get(2).is_some_and(|word| !BenchCommand::has_subcommand(&word.to_string_lossy()));
        let is_file = |next: &OsString| !next.as_bytes().starts_with(b"-") && !is_name(next);
        if let Some(option) = joined.last_mut().filter(|_| is_option && is_measurement)
            && let Some(file) = words.next_if(is_file)
        {
            option.push("=");
            option.push(file);
        }
    }
    joined
}

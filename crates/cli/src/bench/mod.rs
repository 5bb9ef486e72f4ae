//! `nccl bench`: the measurements of nccl-tests, without MPI or a CUDA toolkit, on GPUs or on the CPU.

mod against;
mod arguments;
mod benchmark;
mod bisect;
mod choices;
mod compare;
mod data;
mod measure;
mod output;
mod pairs;
mod parameters;
mod plot;
mod session;
mod start;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use clap::error::ErrorKind;

pub(crate) use arguments::{BenchArguments, with_files_joined};
use arguments::{BenchCommand, MeasureArguments};
use measure::watchdog::Watchdog;
use output::Output;
use parameters::Parameters;
use session::Session;
use start::implementation::{Implementation, implementation, may_share_devices};
use start::{Start, interrupt, processes, threads};

/// Runs the subcommand, or measures the operation that the arguments select.
pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    match (&arguments.command, &arguments.measure) {
        (Some(BenchCommand::Bisect(arguments)), _) => bisect::run(arguments),
        (Some(BenchCommand::Compare(arguments)), _) => compare::run(arguments),
        (Some(BenchCommand::Pairs(arguments)), _) => pairs::run(arguments),
        (Some(BenchCommand::Plot(arguments)), _) => plot::run(arguments),
        (None, Some(arguments)) => benchmark(arguments),
        (None, None) => bail!("no operation is given"),
    }
}

/// Measures an operation.
fn benchmark(arguments: &MeasureArguments) -> Result<ExitCode> {
    if [&arguments.json, &arguments.csv].contains(&&Some(None)) {
        crate::output::keep_libraries_out()?;
    }
    let start = Start::new(arguments.ranks, arguments.processes)?;
    let Implementation { nccl, gpus, fallback } =
        implementation(arguments.backend, arguments.cpu, arguments.library.as_deref())
            .inspect_err(|error| start.fail(error))?;
    let parameters = Parameters::new(arguments, gpus, &start).unwrap_or_else(|problem| {
        // That of another rank, whose host has other GPUs, may be none.
        start.fail(&problem);
        let mut command = MeasureArguments::augment_args(clap::Command::new("nccl bench"));
        command.error(ErrorKind::ValueValidation, problem).exit()
    });
    let Some(first) = parameters.first() else { bail!("nothing to measure") };
    if let Some(program) = &arguments.against {
        if let Start::Launcher(launch) = start {
            bail!("--against compares programs on one host; {} started this one", launch.launcher());
        }
        against::run(program, arguments, first)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (threads, ranks) = (first.threads, first.ranks_per_thread);
    start
        .check_devices(first.ranks / (threads * ranks), threads * ranks, gpus, may_share_devices(&nccl))
        .inspect_err(|problem| start.fail(problem))?;
    let (output, place) = (Output::new(arguments, &start), start.place(threads * ranks));
    if let Some(reason) = fallback
        && place.rank == 0
        && start.parent().is_none()
    {
        if output.has_table() {
            writeln!(crate::output::stdout(), "# {reason}")?;
        } else {
            crate::output::write_to_stderr(&format!("{reason}\n"));
        }
    }
    if let Start::Processes = start {
        return processes::run(&start.id(&nccl)?, first.ranks);
    }
    let interrupted = output.clone();
    start.end_with_output(move || {
        interrupted.interrupt();
    })?;
    let id = start.id(&nccl)?;
    let (interrupted, benchmark) = (output.clone(), first.benchmark);
    let timeout = Some(first.procedure.timeout).filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let watchdog = Watchdog::start(timeout, move |timeout| {
        interrupted.interrupt();
        let problem = format!("rank {}: {benchmark}: nothing has ended for {timeout:?}", place.rank);
        crate::output::write_to_stderr(&format!("error: {problem}\n"));
        interrupt::end(1)
    })?;
    let session = Session { nccl, id, parameters, output, watchdog };
    threads::run(place, threads, ranks, move |place| session::run(&session, place))?;
    Ok(ExitCode::SUCCESS)
}

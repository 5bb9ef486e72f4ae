//! `nccl bench`: the measurements of nccl-tests, without MPI or a CUDA toolkit, on GPUs or on the CPU.

mod against;
mod arguments;
mod backend;
mod benchmark;
mod bisect;
mod buffers;
mod call;
mod compare;
mod csv;
mod data;
mod description;
mod endpoint;
mod implementation;
mod interrupt;
mod job;
mod launch;
mod memory;
mod number;
mod output;
mod pairs;
mod parameters;
mod pattern;
mod plot;
mod progress;
mod rank_arguments;
mod ranks;
mod record;
mod reduction;
mod registrations;
mod report;
mod shape;
mod statistic;
mod table;
mod thread;
mod times;
mod usage;
mod watchdog;
mod work;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use clap::error::ErrorKind;
use libnccl::launch::Launch;

pub(crate) use arguments::BenchArguments;
use arguments::{BenchCommand, MeasureArguments};
use implementation::{Implementation, implementation};
use output::Output;
use parameters::Parameters;
use ranks::Place;
use thread::Session;
use watchdog::Watchdog;

/// Runs the subcommand, or measures the operation that the arguments select.
pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    match (&arguments.command, &arguments.measure) {
        (Some(BenchCommand::Bisect(arguments)), _) => bisect::run(arguments),
        (Some(BenchCommand::Compare(arguments)), _) => compare::run(arguments),
        (Some(BenchCommand::Pairs(arguments)), _) => pairs::run(arguments),
        (Some(BenchCommand::Plot(arguments)), _) => plot::run(arguments),
        (None, Some(arguments)) => measure(arguments),
        (None, None) => bail!("no operation is given"),
    }
}

/// Measures an operation.
fn measure(arguments: &MeasureArguments) -> Result<ExitCode> {
    if [&arguments.json, &arguments.csv].contains(&&Some(None)) {
        crate::output::keep_libraries_out()?;
    }
    let launched = launch::launched()?;
    let launcher =
        if launched.is_none() { launch::by_launcher(arguments.ranks, arguments.processes)? } else { None };
    let Implementation { nccl, gpus, fallback } =
        implementation(arguments.backend, arguments.cpu, arguments.library.as_deref())?;
    let size = launcher.as_ref().map(Launch::size);
    let parameters = Parameters::new(arguments, gpus, size).unwrap_or_else(|problem| {
        let mut command = MeasureArguments::augment_args(clap::Command::new("nccl bench"));
        command.error(ErrorKind::ValueValidation, problem).exit()
    });
    let Some(first) = parameters.first() else { bail!("nothing to measure") };
    if let Some(program) = &arguments.against {
        if let Some(launch) = launcher {
            bail!("--against compares programs on one host; {} started this one", launch.launcher());
        }
        against::run(program, arguments, first)?;
        return Ok(ExitCode::SUCCESS);
    }
    let launch = match &launcher {
        Some(launch) => launch.launcher().to_string(),
        None if arguments.processes => "processes".into(),
        None => "threads".into(),
    };
    let output = Output::new(arguments, launch, launch::parent());
    if let Some(reason) = fallback
        && launched.is_none()
        && launcher.as_ref().is_none_or(|launch| launch.rank() == 0)
    {
        if output.has_table() {
            writeln!(std::io::stdout(), "# {reason}")?;
        } else {
            writeln!(std::io::stderr(), "{reason}")?;
        }
    }
    if launched.is_none() && arguments.processes {
        return launch::processes(&nccl.unique_id()?, first.ranks);
    }
    // The other ranks that this program has started are ended by their parent.
    match launched {
        Some((_, 1..)) => interrupt::leave_to_parent()?,
        _ => interrupt::end_with_output(output.clone())?,
    }
    let place = match (&launched, &launcher) {
        (Some((_, rank)), _) => Place { rank: *rank, local_rank: *rank },
        (None, Some(launch)) => {
            let ranks = first.threads * first.ranks_per_thread;
            Place { rank: launch.rank() * ranks, local_rank: launch.local_rank() * ranks }
        }
        (None, None) => Place { rank: 0, local_rank: 0 },
    };
    let id = match (launched, launcher) {
        (Some((id, _)), _) => id,
        (None, Some(launch)) => launch.unique_id(&nccl)?,
        (None, None) => nccl.unique_id()?,
    };
    let (interrupted, benchmark) = (output.clone(), first.benchmark);
    let watchdog = Watchdog::start(first.timeout, move |timeout| {
        interrupted.interrupt();
        let problem = format!("rank {}: {benchmark}: nothing has ended for {timeout:?}", place.rank);
        let _ = std::io::stderr().write_all(format!("error: {problem}\n").as_bytes());
        interrupt::end(1)
    })?;
    launch::threads(&Session { nccl, id, parameters, output, watchdog }, place)?;
    Ok(ExitCode::SUCCESS)
}

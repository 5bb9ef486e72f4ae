//! `nccl bench`: the measurements of nccl-tests, without MPI or a CUDA toolkit, on GPUs or on the CPU.

mod arguments;
mod backend;
mod bisect;
mod compare;
mod data;
mod endpoint;
mod implementation;
mod job;
mod launch;
mod memory;
mod number;
mod pairs;
mod parameters;
mod pattern;
mod plot;
mod rank;
mod rank_arguments;
mod report;
mod shape;
mod table;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use clap::error::ErrorKind;
use libnccl::launch::Launch;

pub(crate) use arguments::BenchArguments;
use arguments::{BenchCommand, MeasureArguments};
use implementation::{Implementation, implementation};
use parameters::Parameters;

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
    if let Some((id, rank)) = launched {
        rank::run(&nccl, &id, rank, rank, &parameters)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(reason) = fallback
        && launcher.as_ref().is_none_or(|launch| launch.rank() == 0)
    {
        writeln!(std::io::stdout(), "# {reason}")?;
    }
    if let Some(launch) = launcher {
        let id = launch.unique_id(&nccl)?;
        rank::run(&nccl, &id, launch.rank(), launch.local_rank(), &parameters)?;
        return Ok(ExitCode::SUCCESS);
    }
    let id = nccl.unique_id()?;
    let ranks = parameters.first().map_or(0, |parameters| parameters.ranks);
    if arguments.processes {
        launch::processes(&id, ranks)?;
    } else {
        launch::threads(&nccl, &id, ranks, &parameters)?;
    }
    Ok(ExitCode::SUCCESS)
}

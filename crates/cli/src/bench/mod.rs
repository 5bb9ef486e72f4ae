//! `nccl bench`: the measurements of nccl-tests, without MPI or a CUDA toolkit, on GPUs or on the CPU.

mod arguments;
mod data;
mod launch;
mod memory;
mod number;
mod parameters;
mod pattern;
mod rank;
mod report;
mod shape;
mod table;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use clap::error::ErrorKind;
use libnccl::launch::Launch;
use libnccl::{LoadError, MemorySpace, Nccl};

use crate::{gpu, library};
pub(crate) use arguments::BenchArguments;
use arguments::MeasureArguments;
use parameters::Parameters;

/// Runs the subcommand, or measures the operation that the arguments select.
pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    match (&arguments.command, &arguments.measure) {
        (Some(command), _) => match *command {},
        (None, Some(arguments)) => measure(arguments),
        (None, None) => bail!("no operation is given"),
    }
}

/// Measures an operation.
fn measure(arguments: &MeasureArguments) -> Result<ExitCode> {
    let launched = launch::launched()?;
    let launcher = if launched.is_none() { launch::by_launcher(arguments)? } else { None };
    let Implementation { nccl, gpus, fallback } = implementation(arguments)?;
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

/// The implementation of NCCL to measure.
struct Implementation {
    nccl: Nccl,
    /// The number of GPUs, 0 for host memory.
    gpus: usize,
    /// The reason why it is the CPU implementation, unless the user asked for that.
    fallback: Option<String>,
}

/// Returns the implementation that the user selected, or else NCCL if it is available with a GPU, or else the CPU
/// implementation.
fn implementation(arguments: &MeasureArguments) -> Result<Implementation> {
    let path = arguments.library.as_deref();
    let cpu = |fallback| Ok(Implementation { nccl: libnccl_cpu::nccl(), gpus: 0, fallback });
    let fallback = |reason: &str, hint: &str| {
        cpu(Some(format!("{reason}: running on the CPU implementation (host memory){hint}")))
    };
    if arguments.cpu {
        return cpu(None);
    }
    let nccl = match library::load(path) {
        Ok(nccl) => nccl,
        // Another implementation than the one that the user named would hide a mistake.
        Err(LoadError::NotFound { attempts })
            if path.is_none() && !attempts.iter().any(library::is_named_by_variable) =>
        {
            return fallback("no NCCL library found", "; `nccl doctor` lists the search");
        }
        Err(error) => return Err(error.into()),
    };
    // Before the memory space is known: the CPU implementation has that of CUDA if CUDA is there.
    let _ = gpu::load_driver();
    if nccl.memory_space() == MemorySpace::Host {
        return Ok(Implementation { nccl, gpus: 0, fallback: None });
    }
    match gpu::count() {
        Ok(gpus) => Ok(Implementation { nccl, gpus, fallback: None }),
        Err(problem) if path.is_some() => {
            bail!("{} needs a GPU: {problem}", nccl.backend())
        }
        Err(problem) => fallback(&format!("no GPU for NCCL {} ({problem})", nccl.version()), ""),
    }
}

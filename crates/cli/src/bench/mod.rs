//! `nccl bench`: nccl-tests' measurements, without MPI and a CUDA toolkit, and where need be without a GPU.

mod data;
mod launch;
mod memory;
mod parameters;
mod rank;
mod shape;
mod table;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use clap::error::ErrorKind;
use libnccl::{MemorySpace, Nccl};

use crate::args::BenchArguments;
use crate::{gpu, library};
use parameters::Parameters;

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    let launched = launch::launched()?;
    let Implementation { nccl, gpus, instead_of } = implementation(arguments)?;
    let parameters = Parameters::new(arguments, gpus).unwrap_or_else(|problem| {
        let mut command = BenchArguments::augment_args(clap::Command::new("nccl bench"));
        command.error(ErrorKind::ValueValidation, problem).exit()
    });
    if let Some((id, rank)) = launched {
        rank::run(&nccl, &id, rank, &parameters)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(why) = instead_of {
        writeln!(std::io::stdout(), "# {why}")?;
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

struct Implementation {
    nccl: Nccl,
    /// 0: it works on host memory.
    gpus: usize,
    /// Why it is not the one that one would expect.
    instead_of: Option<String>,
}

/// NCCL if it is there and has something to work on, else the CPU implementation; or what the user insists on.
fn implementation(arguments: &BenchArguments) -> Result<Implementation> {
    let path = arguments.library.as_deref();
    let cpu = |instead_of| Ok(Implementation { nccl: libnccl_cpu::nccl(), gpus: 0, instead_of });
    let instead = |why: &str, hint: &str| {
        cpu(Some(format!("{why}: running on the CPU implementation (host memory){hint}")))
    };
    if arguments.cpu {
        return cpu(None);
    }
    let nccl = match library::load(path) {
        Ok(nccl) => nccl,
        Err(error) if path.is_some() => return Err(error.into()),
        Err(_) => return instead("no NCCL library found", "; `nccl doctor` says where it was looked for"),
    };
    if nccl.memory_space() == MemorySpace::Host {
        return Ok(Implementation { nccl, gpus: 0, instead_of: None });
    }
    match gpu::count() {
        Ok(gpus) => Ok(Implementation { nccl, gpus, instead_of: None }),
        Err(problem) if path.is_some() => {
            bail!("{} works on GPUs, and there is none: {problem}", nccl.backend())
        }
        Err(problem) => instead(&format!("no GPU for NCCL {} ({problem})", nccl.version()), ""),
    }
}

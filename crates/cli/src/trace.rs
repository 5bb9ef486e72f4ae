//! `nccl trace`: runs a program with an interposer for NCCL that records its calls.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf, absolute};
use std::process::{self, Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use itertools::Itertools;
use libnccl::internal::PATH_VARIABLE;
use libnccl::internal::environment::variable;
use libnccl_observe::variables;

use crate::value_parser::whole;
use crate::{output, preload};

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/trace.txt").trim_end())]
pub(crate) struct TraceArguments {
    /// Write the recordings into this directory, the same for all ranks [default: nccl-trace-ID, by the job's id or else the
    /// process id]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    output: Option<PathBuf>,
    /// Keep the last N operations of each communicator, of 64 bytes each
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole::<usize>(1..=1 << 20))]
    entries: usize,
    /// Pass calls on to this NCCL library [default: that of `LIBNCCL_PATH`, or the one that the program would find]
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Use this libnccl-trace.so [default: libnccl-trace/libnccl-trace.so next to this program, or in ../lib]
    #[arg(long, value_name = "PATH")]
    recorder: Option<PathBuf>,
    /// Program to run, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// Replaces this process by the program, which thus handles all signals and determines the exit status.
pub(crate) fn run(arguments: &TraceArguments) -> Result<ExitCode> {
    let recorder = recorder(arguments.recorder.as_deref())?;
    let directory = absolute(arguments.output.clone().unwrap_or_else(default_directory))?;
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut command = Command::new(&arguments.program[0]);
    command.args(&arguments.program[1..]);
    command.env(variables::RECORDER, arguments.entries.to_string());
    command.env(variables::RECORDER_FILE, directory.join("rank"));
    if variable(variables::RECORDER_SIGNAL).is_none() {
        command.env(variables::RECORDER_SIGNAL, "USR1");
    }
    // Because of its soname, it also replaces the NCCL that the program is linked with or loads by name.
    command.envs(preload::preload([recorder.clone()])?);
    // Some programs load NCCL by the name for linkers, which is not a soname.
    if let Some(links) = recorder.parent().filter(|links| links.join("libnccl.so").exists()) {
        command.env("LD_LIBRARY_PATH", preload::search_first(&[links.to_owned()])?);
    }
    let own = variable(PATH_VARIABLE).filter(|path| !path.is_empty());
    let library = arguments.library.clone().or_else(|| own.as_ref().map(PathBuf::from));
    if let Some(library) = library {
        if !library.is_file() {
            bail!("there is no file {}; expected an NCCL library", library.display());
        }
        command.env(variables::TRACE_LIBRARY, absolute(library)?);
    }
    if own.is_some() {
        command.env(PATH_VARIABLE, &recorder);
    }
    let directory = directory.display();
    let note = format!(
        "nccl trace: recordings go to {directory}; compare them with: nccl recorder diff {directory}\n"
    );
    // Only rank 0 prints the note. The program runs even if printing fails.
    if variable("RANK").is_none_or(|rank| rank == "0") {
        output::write_to_stderr(&note);
    }
    Err(command.exec()).with_context(|| format!("cannot start {}", arguments.program[0].display()))
}

/// Returns the recording shared object: the given one, the installed one, or the one from a build.
fn recorder(given: Option<&Path>) -> Result<PathBuf> {
    let candidates = match given {
        Some(file) => vec![file.to_owned()],
        None => {
            let [beside, in_lib] = preload::installed("libnccl-trace/libnccl-trace.so")?;
            let of_build = preload::installed("libnccl_trace.so")?[0].clone();
            vec![beside, in_lib, of_build]
        }
    };
    let Some(found) = candidates.iter().find(|file| file.is_file()) else {
        let names = candidates.iter().map(|file| file.display()).join(", nor ");
        bail!(
            "there is no {names}; `cargo xtask trace-so DIR` makes one, and --recorder=DIR/libnccl-trace.so says where it is"
        );
    };
    let found = absolute(found)?;
    preload::check(&found)?;
    Ok(found)
}

/// Returns a directory that is the same for all ranks of a job, if the launcher defines a job id.
fn default_directory() -> PathBuf {
    let id = |name| variable(name)?.into_string().ok().filter(|id| !id.is_empty() && id != "none");
    let id = [libnccl_launch::RUN_ID, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"].into_iter().find_map(id);
    // A user-defined id may contain a slash.
    let id = id.unwrap_or_else(|| process::id().to_string()).replace('/', "_");
    format!("nccl-trace-{id}").into()
}

//! The ranks of one attempt: starting them, and sending them signals.

use std::env;
use std::hash::BuildHasher;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use super::arguments::RunArguments;
use super::machine::Event;
use super::output::{Output, Stream};
use super::process::{self, ROLE, this_program, wait_without_reaping};
use super::report::Report;
use crate::preload;

/// The variables that all ranks of an attempt share.
pub(super) struct Job {
    /// Tells jobs apart.
    run_id: String,
    /// The folder of the CPU backend, if it is to be used.
    cpu: Option<PathBuf>,
}

impl Job {
    pub(super) fn new(arguments: &RunArguments) -> Result<Self> {
        let run_id = format!("{:016x}", std::hash::RandomState::new().hash_one(std::process::id()));
        let cpu = arguments.cpu_and_program().0.map(cpu_folder).transpose()?;
        Ok(Self { run_id, cpu })
    }
}

/// The processes of the ranks of the last attempt, each the first of a process group.
pub(super) struct Ranks<'a> {
    job: Job,
    arguments: &'a RunArguments,
    colors: &'a str,
    reports: Sender<Report>,
    port: u16,
    children: Vec<Option<Child>>,
    /// Each thread that prints has it too.
    open: Option<Arc<Open>>,
}

/// Reports the end of the attempt's output when it is dropped.
struct Open(Sender<Report>);

impl Drop for Open {
    fn drop(&mut self) {
        let _ = self.0.send(Report::Event(Event::OutputEnded));
    }
}

impl<'a> Ranks<'a> {
    pub(super) fn new(
        job: Job,
        arguments: &'a RunArguments,
        colors: &'a str,
        reports: Sender<Report>,
    ) -> Self {
        Self { job, arguments, colors, reports, port: 0, children: vec![], open: None }
    }

    /// Starts a rank, 0 as the first of an attempt. Its end, and a failure to print, are reported.
    ///
    /// Must be called on the main thread: the kernel ends the ranks when the *thread* that started them ends.
    pub(super) fn start(&mut self, attempt: u32, rank: usize) -> Result<()> {
        if rank == 0 {
            self.port = free_port().context("no port is free")?;
            self.children.clear();
            self.open = Some(Arc::new(Open(self.reports.clone())));
        }
        let log = self.arguments.log_dir.as_ref().map(|folder| folder.join(format!("attempt_{attempt}")));
        let output = |stream| Output::new(stream, rank, self.arguments.ranks, log.as_deref(), self.colors);
        let (stdout, stderr) = (output(Stream::Stdout)?, output(Stream::Stderr)?);
        let mut command = this_program()?;
        command.env(ROLE, process::rank());
        set_variables(&mut command, &self.job, rank, self.arguments, attempt, self.port)?;
        command.stdin(Stdio::null()).process_group(0);
        if !self.arguments.inherit {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn().with_context(|| format!("cannot start rank {rank}"))?;
        let (from_stdout, from_stderr) = (child.stdout.take(), child.stderr.take());
        let pid = Pid::from_child(&child);
        self.children.push(Some(child));
        from_stdout.map_or(Ok(()), |from| self.copy(stdout, from))?;
        from_stderr.map_or(Ok(()), |from| self.copy(stderr, from))?;
        let reports = self.reports.clone();
        let wait = move || {
            let _ = wait_without_reaping(pid);
            let _ = reports.send(Report::Ended(rank));
        };
        thread::Builder::new().spawn(wait).context("cannot start a thread")?;
        Ok(())
    }

    fn copy(&self, output: Output, from: impl Read + Send + 'static) -> Result<()> {
        let (reports, open) = (self.reports.clone(), self.open.clone());
        let copy = move || {
            output.copy(from, |error| drop(reports.send(Report::CannotPrint(error))));
            drop(open);
        };
        thread::Builder::new().spawn(copy).context("cannot start a thread")?;
        Ok(())
    }

    /// Waits for no more than the output that there is.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Returns the status of a rank that has ended.
    pub(super) fn reap(&mut self, rank: usize) -> Result<(Pid, ExitStatus)> {
        let mut child = self.children[rank].take().context("a rank ended twice")?;
        Ok((Pid::from_child(&child), child.wait()?))
    }

    pub(super) fn are_running(&self) -> bool {
        self.children.iter().any(Option::is_some)
    }

    /// Sends a signal to the process groups of the ranks that have not ended.
    pub(super) fn send(&self, signal: Signal) {
        for child in self.children.iter().flatten() {
            let _ = kill_process_group(Pid::from_child(child), signal);
        }
    }
}

/// Sets the variables of torchrun, which tell a rank about the others, and one of our own.
fn set_variables(
    command: &mut Command,
    job: &Job,
    rank: usize,
    arguments: &RunArguments,
    attempt: u32,
    port: u16,
) -> Result<()> {
    let (rank, ranks) = (rank.to_string(), arguments.ranks.to_string());
    for name in ["RANK", "LOCAL_RANK", "ROLE_RANK"] {
        command.env(name, &rank);
    }
    for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"] {
        command.env(name, &ranks);
    }
    command.env("GROUP_RANK", "0").env("GROUP_WORLD_SIZE", "1").env("ROLE_NAME", "default");
    command.env("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string()).env("MASTER_PORT", port.to_string());
    command.env("TORCHELASTIC_RESTART_COUNT", attempt.to_string());
    command.env("TORCHELASTIC_MAX_RESTARTS", arguments.restart.to_string());
    command.env("TORCHELASTIC_RUN_ID", &job.run_id).env(libnccl_launch::RUN_ID, &job.run_id);
    // Nobody listens there yet: rank 0 does.
    command.env("TORCHELASTIC_USE_AGENT_STORE", "False");
    if let Some(folder) = &job.cpu {
        let library = folder.join(LIBRARY);
        command.env(libnccl::internal::PATH_VARIABLE, &library);
        // First in the search of the dynamic linker; and preloaded for programs whose own path would come before it, as that of
        // PyTorch does, which leads to NVIDIA's libraries.
        let runtimes = RUNTIMES.map(|runtime| folder.join(runtime)).into_iter().filter(|file| file.is_file());
        command.env("LD_LIBRARY_PATH", preload::before("LD_LIBRARY_PATH", [folder.clone()])?);
        command.env("LD_PRELOAD", preload::before("LD_PRELOAD", runtimes.chain([library]))?);
    }
    Ok(())
}

const LIBRARY: &str = "libnccl.so.2";
/// CUDA's runtime libraries, which the folder may have. A program uses that which it was linked with.
const RUNTIMES: [&str; 2] = ["libcudart.so.12", "libcudart.so.13"];

/// Returns the folder of the CPU backend: the one that is given, or that of an installation.
fn cpu_folder(given: Option<&Path>) -> Result<PathBuf> {
    let program = env::current_exe().context("the path of this program is not known")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let candidates = match given {
        Some(folder) => vec![folder.to_owned()],
        None => vec![beside.join("libnccl-cpu"), beside.join("../lib/libnccl-cpu")],
    };
    let found = candidates.iter().find(|folder| folder.join(LIBRARY).is_file());
    let folder = found.with_context(|| {
        let names: Vec<_> = candidates.iter().map(|folder| folder.display().to_string()).collect();
        format!(
            "no {LIBRARY} in {}; `cargo xtask cpu-so DIR` makes one, and --cpu=DIR says where it is",
            names.join(" or ")
        )
    })?;
    let folder = std::path::absolute(folder).context("the path of the current folder is not known")?;
    preload::check(&folder)?;
    Ok(folder)
}

/// Returns a port of this host that is free. Another program may take it before rank 0 does.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

//! Starts the ranks as the environment and the arguments specify, and exits on a signal.

use std::fmt::Display;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use libnccl::buffer::MemorySpace;
use libnccl::{Nccl, UniqueId};
use libnccl_launch::{Launch, LaunchError, Launcher};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
pub(crate) use signal_hook::low_level::exit;

use crate::run::{THIS_PROGRAM, ignores};
use crate::settings::Settings;
use crate::system::System;
use crate::value_parser::{MAX_RANKS, whole};
use crate::{library, output};

/// The arguments that select the ranks and their library.
#[derive(Debug, Clone, Args)]
pub(crate) struct RankArguments {
    /// Number of ranks, a thread each, unless a launcher has started them [default: one for each GPU; 2 on the CPU]
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=MAX_RANKS))]
    pub(crate) ranks: Option<usize>,
    /// Run each rank as a process instead of a thread, as `nccl run` does
    #[arg(long)]
    pub(crate) processes: bool,
    /// Use the CPU backend even if NCCL and GPUs are available
    #[arg(long, conflicts_with = "library")]
    pub(crate) cpu: bool,
    /// Use this NCCL library instead of searching for one
    #[arg(long, value_name = "PATH")]
    pub(crate) library: Option<PathBuf>,
}

/// The source of NCCL's functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// In the library that this program is linked with, by its feature `link`
    #[cfg_attr(not(feature = "link"), value(hide = true))]
    Link,
    /// In a library that is loaded at run time
    Dlopen,
    /// In the CPU backend in this program
    Cpu,
}

/// The state before the ranks are started: the launcher, if there is one, and the implementation of NCCL.
pub(crate) struct Start<'a> {
    arguments: &'a RankArguments,
    pub(crate) launch: Option<Launch>,
    nccl: Nccl,
    /// The number of GPUs, 0 for host memory.
    pub(crate) gpus: usize,
    /// The reason why the CPU backend is used, unless the user selected it.
    fallback: Option<String>,
}

impl<'a> Start<'a> {
    /// Reads the launcher's variables and loads NCCL.
    ///
    /// Fails if a launcher does not define this process's rank, because each process would measure alone.
    pub(crate) fn new(arguments: &'a RankArguments, backend: Option<Backend>) -> Result<Self> {
        let launch = match Launch::from_env() {
            Ok(launch) => Some(launch).filter(|launch| launch.size() > 1),
            Err(LaunchError::NoLauncher) => None,
            Err(error) => return Err(error.into()),
        };
        if let (Some(launch), Some(ranks)) = (&launch, arguments.ranks)
            && ranks != launch.size()
        {
            let (launcher, rank, size) = (launch.launcher(), launch.rank(), launch.size());
            bail!("{launcher} started this as rank {rank} of {size}; --ranks {ranks} contradicts it");
        }
        let (nccl, gpus, fallback) = check(&launch, implementation(arguments, backend))?;
        Ok(Self { arguments, launch, nccl, gpus, fallback })
    }

    /// Returns the number of processes, and the number of threads in each if a thread has one rank. Their product is the number
    /// of ranks that the user or the launcher selected, or else the number of GPUs, or else 2.
    pub(crate) fn processes_and_threads(&self) -> (usize, usize) {
        let ranks = self.arguments.ranks.unwrap_or(if self.gpus == 0 { 2 } else { self.gpus });
        match &self.launch {
            Some(launch) => (launch.size(), 1),
            None if self.arguments.processes => (ranks, 1),
            None => (1, ranks),
        }
    }

    /// Joins the job. With `--processes`, several ranks and no launcher, replaces this process by `nccl run` of this program.
    pub(crate) fn join(self, threads: usize, ranks_per_thread: usize) -> Result<Job> {
        let (processes, _) = self.processes_and_threads();
        let ranks = threads * ranks_per_thread;
        check(&self.launch, self.check_devices(processes, ranks))?;
        let Self { arguments, launch, nccl, gpus, fallback } = self;
        if launch.is_none() && processes > 1 {
            return become_launcher(processes);
        }
        let (rank, local_rank, id) = match &launch {
            Some(launch) => (launch.rank(), launch.local_rank(), launch.unique_id(&nccl)?),
            None => (0, 0, nccl.unique_id()?),
        };
        let launcher = launch.as_ref().map(Launch::launcher);
        let name = match launcher.filter(|one| !arguments.processes || *one != Launcher::NcclRun) {
            Some(launcher) => launcher.to_string(),
            None if arguments.processes => "processes".into(),
            None => "threads".into(),
        };
        Ok(Job {
            nccl,
            id,
            size: processes * ranks,
            gpus,
            launch: name,
            fallback,
            first: rank * ranks,
            local_first: local_rank * ranks,
            threads,
            ranks_per_thread,
            is_launched: launch.is_some(),
            operations: None,
        })
    }

    fn check_devices(&self, processes: usize, ranks: usize) -> Result<()> {
        let gpus = self.gpus;
        let processes = match &self.launch {
            // A launcher may have given each process its own devices.
            Some(_) if gpus == ranks => 1,
            Some(launch) => launch.local_size(),
            None => processes,
        };
        let local = processes * ranks;
        let may_share = || Settings::of(&System::here()).value("NCCL_MULTI_RANK_GPU_ENABLE") == Some("1");
        let devices = if gpus == 1 { "1 device".into() } else { format!("{gpus} devices") };
        let expected = "expected a device for each rank of this host";
        let unless = "unless NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30.3 and newer)";
        ensure!(gpus == 0 || local <= gpus || may_share(), "{local} ranks, {devices}: {expected}, {unless}");
        Ok(())
    }
}

/// Reports a failure to the other ranks if there is a launcher, so that they do not wait for this rank.
pub(crate) fn check<T, E: Display>(launch: &Option<Launch>, result: Result<T, E>) -> Result<T, E> {
    result.inspect_err(|error| {
        if let Some(launch) = launch {
            // The alternate format includes the causes of an error.
            launch.fail(format!("{error:#}"));
        }
    })
}

/// Returns the implementation that the user selected, or else NCCL if a library and a GPU are available, or else the CPU backend.
/// Also returns the number of GPUs, and the reason for falling back to the CPU backend.
fn implementation(
    arguments: &RankArguments,
    backend: Option<Backend>,
) -> Result<(Nccl, usize, Option<String>)> {
    let path = arguments.library.as_deref();
    let fallback = |reason: &str, hint: &str| {
        let reason = format!("{reason}: running on the CPU backend (host memory){hint}");
        Ok((libnccl_cpu::nccl(), 0, Some(reason)))
    };
    if arguments.cpu || backend == Some(Backend::Cpu) {
        return Ok((libnccl_cpu::nccl(), 0, None));
    }
    let nccl = match backend {
        Some(Backend::Link) => library::linked()?,
        Some(_) => library::open(path)?,
        None => match library::find(path)? {
            Some(nccl) => nccl,
            None => return fallback("no NCCL library found", "; `nccl doctor` lists the search"),
        },
    };
    // Before the memory space is determined: the CPU backend uses CUDA's memory space if CUDA is available.
    let _ = library::load_driver();
    if nccl.memory_space() == MemorySpace::Host {
        return Ok((nccl, 0, None));
    }
    match library::gpus() {
        Ok(gpus) => Ok((nccl, gpus, None)),
        Err(problem) if path.is_some() || backend.is_some() => {
            bail!("{} needs a GPU: {problem}", nccl.backend())
        }
        Err(problem) => fallback(&format!("no GPU for NCCL {} ({problem})", nccl.version()), ""),
    }
}

/// Replaces this process by `nccl run`, with this program and its arguments as each rank. Returns only if that fails.
fn become_launcher(ranks: usize) -> Result<Job> {
    let mut command = Command::new(THIS_PROGRAM);
    command.args(["run", "--inherit", "-n"]).arg(ranks.to_string()).args(["--", THIS_PROGRAM]);
    command.args(std::env::args_os().skip(1)).stdout(output::stdout_of_child()?);
    Err(command.exec()).context("cannot start nccl run")
}

/// The ranks of this process, and the state that its threads share.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) nccl: Nccl,
    pub(crate) id: UniqueId,
    /// The number of ranks of all processes.
    pub(crate) size: usize,
    /// The number of GPUs of this host that the ranks are spread over; 0 for host memory.
    pub(crate) gpus: usize,
    /// The start method of the ranks: `threads`, `processes`, or the name of the launcher.
    pub(crate) launch: String,
    pub(crate) fallback: Option<String>,
    /// The first rank of this process; `local_first` is its index among the ranks of its host.
    first: usize,
    local_first: usize,
    threads: usize,
    pub(crate) ranks_per_thread: usize,
    is_launched: bool,
    /// The number of operations that were started, counted if there is a timeout.
    pub(crate) operations: Option<Arc<AtomicU64>>,
}

static HAS_SIGNAL: AtomicBool = AtomicBool::new(false);

impl Job {
    /// Returns the first rank of a thread of this process.
    pub(crate) fn rank(&self, thread: usize) -> usize {
        self.first + thread * self.ranks_per_thread
    }

    /// Returns the index of a thread's first rank among the ranks of its host.
    pub(crate) fn local_rank(&self, thread: usize) -> usize {
        self.local_first + thread * self.ranks_per_thread
    }

    /// Starts the threads, and calls `work` on each with the thread's number. Returns whether all calls returned `true`.
    ///
    /// The first error, or a signal, ends the process, because the other threads may block in NCCL forever. `complete` is called
    /// first, so that measurements are not lost.
    pub(crate) fn run(
        &self,
        complete: impl Fn() + Clone + Send + 'static,
        work: impl Fn(&Self, usize) -> Result<bool> + Clone + Send + 'static,
    ) -> Result<bool> {
        end_on_signals(complete.clone())?;
        let (sender, outcomes) = channel();
        for thread in 0..self.threads {
            let (job, rank) = (self.clone(), self.rank(thread));
            let (work, outcome_sender) = (work.clone(), sender.clone());
            let run = move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| work(&job, thread)));
                let outcome = outcome.unwrap_or_else(|_| Err(anyhow!("panicked")));
                // The receiver was dropped if another rank has failed.
                let _ = outcome_sender.send(outcome.with_context(|| format!("rank {rank}")));
            };
            // Not scoped: after an error, the other threads may block in NCCL forever.
            let started = thread::Builder::new().name(format!("rank {rank}")).spawn(run);
            if let Err(error) = started.context("cannot start a thread for a rank") {
                let _ = sender.send(Err(error));
                break;
            }
        }
        drop(sender);
        let outcome: Result<Vec<bool>> = outcomes.iter().collect();
        if outcome.is_err() {
            if self.is_launched {
                let_signal_come_first();
            }
            complete();
        }
        Ok(outcome?.into_iter().all(|is_good| is_good))
    }
}

/// Calls `complete` on a signal, then ends the process with status 128 plus the signal's number. Libraries' exit handlers do not
/// run, because other threads may be in NCCL.
fn end_on_signals(complete: impl Fn() + Send + 'static) -> Result<()> {
    // A shell ignores SIGINT in background processes of a script.
    let signals = [SIGINT, SIGTERM].into_iter().filter(|signal| !ignores(*signal));
    let mut signals = Signals::new(signals).context("cannot handle signals")?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            HAS_SIGNAL.store(true, Ordering::Relaxed);
            complete();
            exit(128 + signal)
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map(drop).context("cannot start a thread")
}

/// Waits for the signal that a launcher sends if another rank fails or the job is interrupted, because this rank's own failure
/// may only be a consequence. Returns after 100 ms without a signal.
fn let_signal_come_first() {
    const LIMIT: Duration = Duration::from_millis(100);

    thread::sleep(LIMIT);
    while HAS_SIGNAL.load(Ordering::Relaxed) {
        // The thread that handles the signal ends the process.
        thread::sleep(LIMIT);
    }
}

/// Returns a counter for operations. If the count does not change within the timeout, `expire` is called on a separate thread.
pub(crate) fn watch(timeout: Duration, expire: impl FnOnce() + Send + 'static) -> Result<Arc<AtomicU64>> {
    const MAX_POLL: Duration = Duration::from_millis(100);

    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let watch = move || {
        let (mut last, mut since) = (counted.load(Ordering::Relaxed), Instant::now());
        while since.elapsed() < timeout {
            thread::sleep(MAX_POLL.min(timeout / 4));
            let count = counted.load(Ordering::Relaxed);
            if count != last {
                (last, since) = (count, Instant::now());
            }
        }
        expire();
    };
    thread::Builder::new().name("timeout".into()).spawn(watch).context("cannot start a thread")?;
    Ok(count)
}

#[cfg(test)]
#[path = "../../tests/unit/bench_start.rs"]
mod tests;

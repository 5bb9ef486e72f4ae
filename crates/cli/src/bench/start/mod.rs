//! Starts the ranks, as the environment and the arguments decide.

pub(crate) mod implementation;
pub(crate) mod interrupt;

use std::fmt::Display;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use libnccl::{Nccl, UniqueId};
use libnccl_launch::{Launch, LaunchError, Launcher};

use crate::output;
use crate::run::THIS_PROGRAM;
use crate::value_parser::{MAX_RANKS, whole};
use implementation::{Implementation, may_share_devices};

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

/// How the ranks are started.
pub(crate) enum Start {
    /// As threads of this process.
    Threads,
    /// As processes, by `nccl run`, which this process becomes.
    Processes,
    /// By a launcher, which has started this process and others: torchrun, `mpirun`, `srun`, `nccl run`.
    Launched(Launch),
}

impl Start {
    /// Returns how the ranks are started.
    ///
    /// Fails if a launcher does not say which rank this process is: each process would measure alone.
    pub(crate) fn new(arguments: &RankArguments) -> Result<Self> {
        let launch = match Launch::from_env() {
            Ok(launch) if launch.size() > 1 => launch,
            Ok(_) | Err(LaunchError::NoLauncher) => {
                return Ok(if arguments.processes { Self::Processes } else { Self::Threads });
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(ranks) = arguments.ranks.filter(|ranks| *ranks != launch.size()) {
            let (launcher, rank, size) = (launch.launcher(), launch.rank(), launch.size());
            bail!("{launcher} started this as rank {rank} of {size}; --ranks {ranks} contradicts it");
        }
        Ok(Self::Launched(launch))
    }

    /// Returns the number of processes and of threads in each, with one rank a thread: the number of ranks that the user
    /// or the launcher has chosen, or the number of GPUs.
    pub(crate) fn processes_and_threads(&self, ranks: Option<usize>, gpus: usize) -> (usize, usize) {
        let ranks = ranks.unwrap_or(if gpus == 0 { 2 } else { gpus });
        match self {
            Self::Threads => (1, ranks),
            Self::Processes => (ranks, 1),
            Self::Launched(launch) => (launch.size(), 1),
        }
    }

    /// Reports a failure to the other ranks that a launcher has started, so that they do not wait for this one.
    pub(crate) fn check<T, E: Display>(&self, result: Result<T, E>) -> Result<T, E> {
        result.inspect_err(|error| {
            if let Self::Launched(launch) = self {
                // With the causes of an error.
                launch.fail(format!("{error:#}"));
            }
        })
    }

    /// Joins the job. With [`Start::Processes`] and several ranks this process becomes `nccl run`, which starts it again
    /// as each rank.
    pub(crate) fn join(
        self,
        arguments: &RankArguments,
        implementation: Implementation,
        threads: usize,
        ranks_per_thread: usize,
    ) -> Result<Job> {
        let Implementation { nccl, gpus, fallback } = implementation;
        let (processes, _) = self.processes_and_threads(arguments.ranks, gpus);
        let ranks = threads * ranks_per_thread;
        self.check(self.check_devices(processes, ranks, gpus, may_share_devices()))?;
        if let Self::Processes = self
            && processes > 1
        {
            return become_launcher(processes);
        }
        let (rank, local_rank, id, is_launched) = match &self {
            Self::Threads | Self::Processes => (0, 0, nccl.unique_id()?, false),
            Self::Launched(launch) => (launch.rank(), launch.local_rank(), launch.unique_id(&nccl)?, true),
        };
        let launch = match &self {
            Self::Threads => "threads".into(),
            Self::Launched(launch) if !(arguments.processes && launch.launcher() == Launcher::NcclRun) => {
                launch.launcher().to_string()
            }
            Self::Processes | Self::Launched(_) => "processes".into(),
        };
        Ok(Job {
            nccl,
            id,
            size: processes * ranks,
            gpus,
            launch,
            fallback,
            first: rank * ranks,
            local_first: local_rank * ranks,
            threads,
            ranks_per_thread,
            is_launched,
        })
    }

    /// Checks that there is a device for each rank of this host, or that ranks may share one.
    fn check_devices(&self, processes: usize, ranks: usize, gpus: usize, may_share: bool) -> Result<()> {
        let processes = match self {
            // A launcher may have given each process its own devices.
            Self::Launched(_) if gpus == ranks => 1,
            Self::Launched(launch) => launch.local_size(),
            Self::Threads | Self::Processes => processes,
        };
        let local = processes * ranks;
        ensure!(
            gpus == 0 || local <= gpus || may_share,
            "{local} ranks, {gpus} device{}: expected a device for each rank of this host, unless \
             NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30.3 and newer)",
            if gpus == 1 { "" } else { "s" }
        );
        Ok(())
    }
}

/// Replaces this process by `nccl run`, which starts this program with the same arguments as each rank. Returns only if that
/// fails.
fn become_launcher(ranks: usize) -> Result<Job> {
    let mut command = Command::new(THIS_PROGRAM);
    command.args(["run", "--inherit", "-n"]).arg(ranks.to_string()).args(["--", THIS_PROGRAM]);
    command.args(std::env::args_os().skip(1)).stdout(output::stdout_of_child()?);
    Err(command.exec()).context("cannot start nccl run")
}

/// The ranks of this process, and what its threads share.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) nccl: Nccl,
    pub(crate) id: UniqueId,
    /// The number of ranks of all processes.
    pub(crate) size: usize,
    /// The number of GPUs of this host that the ranks are spread over; 0 for host memory.
    pub(crate) gpus: usize,
    /// `threads`, `processes`, or the name of the launcher.
    pub(crate) launch: String,
    /// Why the CPU backend is used, unless the user selected it.
    pub(crate) fallback: Option<String>,
    /// The first rank of this process, and its number among the ranks of its host.
    first: usize,
    local_first: usize,
    threads: usize,
    pub(crate) ranks_per_thread: usize,
    is_launched: bool,
}

impl Job {
    /// Returns the first rank of a thread of this process.
    pub(crate) fn rank(&self, thread: usize) -> usize {
        self.first + thread * self.ranks_per_thread
    }

    /// Returns the number of that rank among the ranks of its host.
    pub(crate) fn local_rank(&self, thread: usize) -> usize {
        self.local_first + thread * self.ranks_per_thread
    }

    /// Calls `work` on each thread of this process, with the number of the thread. Returns whether all of them returned
    /// `true`. The first error ends the process, as the other threads may wait in NCCL for ever.
    pub(crate) fn run(
        &self,
        work: impl Fn(&Self, usize) -> Result<bool> + Clone + Send + 'static,
    ) -> Result<bool> {
        let (sender, outcomes) = channel();
        for thread in 0..self.threads {
            let (job, rank) = (self.clone(), self.rank(thread));
            let (work, sender) = (work.clone(), sender.clone());
            let run = move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| work(&job, thread)));
                let outcome = outcome.unwrap_or_else(|_| Err(anyhow!("panicked")));
                // The receiver is gone if another rank has failed.
                let _ = sender.send(outcome.with_context(|| format!("rank {rank}")));
            };
            // Not scoped: after an error, the other threads may block in NCCL forever.
            thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn(run)
                .context("cannot start a thread for a rank")?;
        }
        drop(sender);
        let outcome: Result<Vec<bool>> = outcomes.iter().collect();
        if outcome.is_err() && self.is_launched {
            interrupt::let_signal_come_first();
        }
        Ok(outcome?.into_iter().all(|is_good| is_good))
    }
}

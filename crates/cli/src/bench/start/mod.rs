//! The start of the ranks, which environment and arguments decide.

pub(crate) mod arguments;
pub(crate) mod backend;
pub(crate) mod implementation;
pub(crate) mod interrupt;
pub(crate) mod job;
pub(crate) mod processes;
pub(crate) mod threads;

use std::fmt::{self, Display, Formatter};

use anyhow::{Context, Result, bail, ensure};
use libnccl::internal::environment::variable;
use libnccl::{Nccl, UniqueId};
use libnccl_launch::{Launch, LaunchError};

use crate::run::end_with_parent;

// The id is a secret, and command lines are visible to all users.
/// The rank of a process that `nccl bench` has started.
pub(crate) const RANK: &str = "LIBNCCL_BENCH_RANK";
/// The id of its communicator.
pub(crate) const ID: &str = "LIBNCCL_BENCH_ID";
/// The process id of its parent.
pub(crate) const PARENT: &str = "LIBNCCL_BENCH_PARENT";

/// The way in which the ranks are started.
pub(crate) enum Start {
    /// Threads of this process.
    Threads,
    /// Processes that this one starts.
    Processes,
    /// A process that was started so: this one.
    Launched { rank: usize, id: UniqueId, parent: String },
    /// Processes that a launcher has started, this one among them: torchrun, `mpirun`, `srun`, `nccl run`.
    Launcher(Launch),
}

/// The place of a thread's ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The number of the first one among all.
    pub(crate) rank: usize,
    /// The number of the first one among those of its host.
    pub(crate) local_rank: usize,
}

impl Start {
    /// Returns the start of the ranks. A process that was launched ends with its parent from then on.
    ///
    /// A launcher whose place for this process cannot be told is an error, and not a job of its own, as the other processes
    /// would be jobs of their own too.
    pub(crate) fn new(ranks: Option<usize>, as_processes: bool) -> Result<Self> {
        let value = |name| variable(name)?.into_string().ok();
        if let (Some(rank), Some(id), Some(parent)) = (value(RANK), value(ID), value(PARENT)) {
            // Whatever ends the parent, SIGKILL included, so the parent handles no signals.
            end_with_parent(&parent)?;
            let rank = rank.parse().with_context(|| format!("invalid rank {RANK}={rank}"))?;
            let id = id.parse().with_context(|| format!("invalid id in {ID}"))?;
            return Ok(Self::Launched { rank, id, parent });
        }
        let launch = match Launch::from_env() {
            Ok(launch) if launch.size() > 1 => launch,
            Ok(_) | Err(LaunchError::NoLauncher) => {
                return Ok(if as_processes { Self::Processes } else { Self::Threads });
            }
            Err(error) => return Err(error.into()),
        };
        if ranks.is_some() || as_processes {
            let (launcher, rank, size) = (launch.launcher(), launch.rank(), launch.size());
            bail!(
                "{launcher} started this as rank {rank} of {size}; --ranks and --processes are for ranks that nccl bench \
                 starts itself"
            );
        }
        Ok(Self::Launcher(launch))
    }

    /// Returns the numbers of processes and of the threads of each, for one rank of a thread: so many as are asked for, or
    /// as there are GPUs, unless a launcher has decided.
    pub(crate) fn processes_and_threads(&self, ranks: Option<usize>, gpus: usize) -> (usize, usize) {
        let ranks = ranks.unwrap_or(if gpus == 0 { 2 } else { gpus });
        match self {
            Self::Threads => (1, ranks),
            Self::Processes | Self::Launched { .. } => (ranks, 1),
            Self::Launcher(launch) => (launch.size(), 1),
        }
    }

    /// Checks that there is a device for each rank of this host, or that ranks may share one. On a host without GPUs ranks need none.
    pub(crate) fn check_devices(
        &self,
        processes: usize,
        ranks: usize,
        gpus: usize,
        may_share: bool,
    ) -> Result<()> {
        let processes = match self {
            // A launcher may have given each process its own devices.
            Self::Launcher(_) if gpus == ranks => 1,
            Self::Launcher(launch) => launch.local_size(),
            Self::Threads | Self::Processes | Self::Launched { .. } => processes,
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

    /// Returns the place of this process among those of so many ranks.
    pub(crate) fn place(&self, ranks: usize) -> Place {
        let (rank, local_rank) = match self {
            Self::Threads | Self::Processes => (0, 0),
            Self::Launched { rank, .. } => (*rank, *rank),
            Self::Launcher(launch) => (launch.rank(), launch.local_rank()),
        };
        Place { rank: rank * ranks, local_rank: local_rank * ranks }
    }

    /// Returns the id of the communicator of all ranks.
    pub(crate) fn id(&self, nccl: &Nccl) -> Result<UniqueId> {
        match self {
            Self::Threads | Self::Processes => Ok(nccl.unique_id()?),
            Self::Launched { id, .. } => Ok(*id),
            Self::Launcher(launch) => Ok(launch.unique_id(nccl)?),
        }
    }

    /// Tells the ranks that a launcher has started why this one does not come to the [id](Self::id).
    pub(crate) fn fail(&self, reason: impl Display) {
        if let Self::Launcher(launch) = self {
            // With the causes of an error.
            launch.fail(format!("{reason:#}"));
        }
    }

    /// Ends this process when a signal comes, after `complete`. The ranks that this program has started, but for the first,
    /// are ended by their parent.
    pub(crate) fn end_with_output(&self, complete: impl Fn() + Send + 'static) -> Result<()> {
        match self {
            Self::Launched { rank: 1.., .. } => interrupt::leave_to_parent(),
            _ => interrupt::end_with_output(complete),
        }
    }

    /// Returns the process id of the parent that has started this rank.
    pub(crate) fn parent(&self) -> Option<&str> {
        if let Self::Launched { parent, .. } = self { Some(parent) } else { None }
    }
}

/// Writes `threads`, `processes`, or the name of the launcher.
impl Display for Start {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Threads => f.write_str("threads"),
            Self::Processes | Self::Launched { .. } => f.write_str("processes"),
            Self::Launcher(launch) => launch.launcher().fmt(f),
        }
    }
}

use std::fmt;
use std::time::Duration;

use super::job::Launcher;
use super::rendezvous::Rendezvous;

/// The error of a [`Launch`](super::Launch). [`Debug`](fmt::Debug) and [`Display`](fmt::Display) write the same text.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No launcher's variable is set, for example because the process was started manually.
    #[error(
        "no launcher: none of RANK, TORCHELASTIC_RUN_ID, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_STEP_ID, \
         LWS_GROUP_SIZE, PET_NNODES, JOB_COMPLETION_INDEX is set"
    )]
    NoLauncher,

    /// A variable is missing or invalid, or contradicts another variable.
    #[error("{launcher}: {problem}")]
    Variables {
        /// The launcher whose variables were read.
        launcher: Launcher,
        /// The variables, their values, and what was expected.
        problem: Box<str>,
    },

    /// This process sees no device, or sees several devices but fewer than there are ranks on this host. One device is enough.
    #[error(
        "{ranks} rank{}, {devices} device{}: expected a device for each rank on this host, or one visible device per process",
        if *ranks == 1 { "" } else { "s" },
        if *devices == 1 { "" } else { "s" }
    )]
    Devices {
        /// The number of ranks on this host.
        ranks: usize,
        /// The number of devices that this process sees.
        devices: usize,
    },

    /// Ranks did not join, or the exchange did not finish, within the [timeout](super::Launch::timeout).
    #[error(
        "{} within {:.1} s{}{detail}",
        absence(ranks, *missing, *size),
        elapsed.as_secs_f64(),
        if detail.is_empty() { "" } else { ": " }
    )]
    MissingRanks {
        /// The missing ranks, at most 32. Empty if all ranks joined, but the exchange did not finish.
        ranks: Box<[usize]>,
        /// The number of missing ranks.
        missing: usize,
        /// The number of ranks of the job.
        size: usize,
        /// The time that this rank waited.
        elapsed: Duration,
        /// Further details. On rank 0: its address, the ranks that joined, and the refused connections. On another rank: the
        /// reason why it could not reach rank 0, or a note that the list of missing ranks is from rank 0.
        detail: Box<str>,
    },

    /// A rank failed during the exchange: it called [`fail`](super::Launch::fail), exited, timed out, could not begin to create
    /// its communicator, or passed a communicator name that differs from the name on rank 0.
    #[error("rank {rank} failed: {reason}")]
    RankFailed {
        /// The rank that failed.
        rank: usize,
        /// The reason, truncated to 1024 bytes if another rank sent it.
        reason: Box<str>,
    },

    /// The exchange of the unique id failed for another reason, such as a port in use or different numbers of ranks.
    #[error("{rendezvous}: {problem}")]
    Rendezvous {
        /// The address or directory of the exchange.
        rendezvous: Box<Rendezvous>,
        /// The reason why the exchange failed.
        problem: Box<str>,
    },

    /// NCCL could not be loaded, or an NCCL call failed.
    #[error(transparent)]
    Nccl(#[from] libnccl::Error),
}

impl fmt::Debug for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<libnccl::error::LoadError> for LaunchError {
    fn from(error: libnccl::error::LoadError) -> Self {
        Self::Nccl(error.into())
    }
}

/// The result of the methods of [`Launch`](super::Launch).
pub type Result<T, E = LaunchError> = std::result::Result<T, E>;

pub(super) fn rank_failed(rank: u32, reason: impl Into<Box<str>>) -> LaunchError {
    LaunchError::RankFailed { rank: rank as usize, reason: reason.into() }
}

/// Formats the ranks that did not join: `rank 3`, `ranks 3 and 5`, or `ranks 1, 2, 3 and 7 more`. `ranks` is empty if all joined,
/// but the exchange did not finish.
fn absence(ranks: &[usize], missing: usize, size: usize) -> String {
    let mut texts: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    if missing > ranks.len() {
        texts.push(format!("{} more", missing - ranks.len()));
    }
    match texts.split_last() {
        None => format!("all {size} ranks joined, but the exchange of the unique id did not finish"),
        Some((last, [])) => format!("rank {last} of {size} did not join"),
        Some((last, others)) => format!("ranks {} and {last} of {size} did not join", others.join(", ")),
    }
}

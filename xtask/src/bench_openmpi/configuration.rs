use std::fmt::{self, Display, Formatter};

use clap::ValueEnum;

use super::operation::Operation;

/// A library together with the setup of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Configuration {
    /// OpenMPI: the ranks are processes, their buffers come from `malloc`.
    OpenMpi,
    /// Another library, with the same ranks and buffers as OpenMPI.
    Peer(Peer),
    /// The CPU backend of this checkout.
    Current(Setup),
    /// Another build of the CPU backend.
    Baseline(Setup),
}

/// A library besides OpenMPI that `all_reduce` of two processes is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    IntelMpi,
    #[value(name = "oneccl")]
    OneCcl,
}

/// The setup of the CPU backend's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setup {
    /// Processes with buffers from `malloc`.
    Malloc,
    /// Processes with buffers from `ncclMemAlloc`.
    NcclMemAlloc,
    /// Threads of one process.
    Threads,
}

impl Setup {
    pub(crate) const ALL: [Self; 3] = [Self::Malloc, Self::NcclMemAlloc, Self::Threads];
}

impl Configuration {
    /// The configurations of a comparison of two builds, in the order in which they run.
    pub(crate) const WITH_BASELINE: [Self; 6] = [
        Self::Baseline(Setup::Malloc),
        Self::Current(Setup::Malloc),
        Self::Baseline(Setup::NcclMemAlloc),
        Self::Current(Setup::NcclMemAlloc),
        Self::Baseline(Setup::Threads),
        Self::Current(Setup::Threads),
    ];

    /// Returns the configurations of a comparison with OpenMPI and its peers, in the order in which they run.
    pub(crate) fn with_openmpi(peers: &[Peer]) -> Vec<Self> {
        let peers = peers.iter().copied().map(Self::Peer);
        [Self::OpenMpi].into_iter().chain(peers).chain(Setup::ALL.map(Self::Current)).collect()
    }

    /// Returns whether the library has the operation in this benchmark.
    pub(crate) fn has(self, operation: Operation, ranks: u32) -> bool {
        !matches!(self, Self::Peer(_)) || (operation, ranks) == (Operation::AllReduce, 2)
    }
}

impl Display for Configuration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenMpi => f.write_str("OpenMPI"),
            Self::Peer(peer) => peer.fmt(f),
            Self::Current(setup) => setup.fmt(f),
            Self::Baseline(setup) => write!(f, "baseline {setup}"),
        }
    }
}

impl Display for Peer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IntelMpi => "Intel MPI",
            Self::OneCcl => "oneCCL",
        })
    }
}

impl Display for Setup {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malloc => "malloc",
            Self::NcclMemAlloc => "ncclMemAlloc",
            Self::Threads => "threads",
        })
    }
}

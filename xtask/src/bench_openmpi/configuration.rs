use std::fmt::{self, Display, Formatter};

/// A library together with the setup of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Configuration {
    /// OpenMPI: the ranks are processes, their buffers come from `malloc`.
    OpenMpi,
    /// The CPU implementation of this checkout.
    Current(Setup),
    /// Another build of the CPU implementation.
    Baseline(Setup),
}

/// The setup of the CPU implementation's ranks.
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
    /// The configurations of a comparison with OpenMPI, in the order in which they run.
    pub(crate) const WITH_OPENMPI: [Self; 4] = [
        Self::OpenMpi,
        Self::Current(Setup::Malloc),
        Self::Current(Setup::NcclMemAlloc),
        Self::Current(Setup::Threads),
    ];
    /// The configurations of a comparison of two builds, in the order in which they run.
    pub(crate) const WITH_BASELINE: [Self; 6] = [
        Self::Baseline(Setup::Malloc),
        Self::Current(Setup::Malloc),
        Self::Baseline(Setup::NcclMemAlloc),
        Self::Current(Setup::NcclMemAlloc),
        Self::Baseline(Setup::Threads),
        Self::Current(Setup::Threads),
    ];
}

impl Display for Configuration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenMpi => f.write_str("OpenMPI"),
            Self::Current(setup) => setup.fmt(f),
            Self::Baseline(setup) => write!(f, "baseline {setup}"),
        }
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

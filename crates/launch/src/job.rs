use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// The launcher that has set the variables of this process. `Display` writes its usual name, such as `OpenMPI`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// `nccl run`, of the package `libnccl-cli`.
    NcclRun,
    /// PyTorch's torchrun.
    Torchrun,
    /// The `mpirun` of OpenMPI.
    OpenMpi,
    /// The `mpiexec` of MPICH and of Intel MPI.
    Mpich,
    /// SLURM's `srun`.
    Slurm,
    /// A Kubernetes LeaderWorkerSet, with one process per pod.
    LeaderWorkerSet,
    /// A Kubeflow job, v1 or Trainer v2, with one process per pod.
    Kubeflow,
    /// A Kubernetes JobSet or other indexed job, with one process per pod.
    JobSet,
    /// No launcher: a user or a script has set `RANK` and `WORLD_SIZE`.
    Variables,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NcclRun => "nccl run",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "OpenMPI",
            Self::Mpich => "MPICH",
            Self::Slurm => "SLURM",
            Self::LeaderWorkerSet => "LeaderWorkerSet",
            Self::Kubeflow => "Kubeflow",
            Self::JobSet => "JobSet",
            Self::Variables => "RANK and WORLD_SIZE",
        })
    }
}

/// A value that is unique to an exchange.
pub(super) type Nonce = u128;

/// Returns a new nonce, made from the random keys of the standard library's hash maps.
pub(super) fn nonce() -> Nonce {
    let random = || u128::from(RandomState::new().hash_one(()));
    random() << 64 | random()
}

/// The name of a communicator. Empty if it has no name; `None` if names are not compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name(Option<String>);

impl Name {
    pub(super) const ANY: Self = Self(None);
    /// The maximum length of a name in bytes. In a longer name, a hash replaces the end.
    const MAX: usize = 256;

    pub(super) fn new(name: &str) -> Self {
        let text: String = name.escape_debug().collect();
        let start: String = text.chars().take(Self::MAX / 4).collect();
        Self(Some(if text.len() > Self::MAX { format!("{start}... ({:032x})", hash(name)) } else { text }))
    }

    pub(super) fn text(&self) -> String {
        self.0.as_ref().map_or_else(|| "*".into(), |name| format!("={name}"))
    }

    pub(super) fn parse(text: &str) -> Self {
        let name = text.strip_prefix('=');
        Self(name.map(|name| name.chars().filter(|character| !character.is_control()).collect()))
    }

    pub(super) fn fits(&self, other: &Self) -> bool {
        [self, other].contains(&&Self::ANY) || self == other
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_deref() {
            None | Some("") => f.write_str("a communicator without a name"),
            Some(name) => write!(f, "communicator \"{name}\""),
        }
    }
}

/// Returns the 128-bit FNV-1a hash of a text: the same on all hosts and in all versions.
pub(super) fn hash(text: &str) -> u128 {
    text.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
#[path = "../tests/unit/job.rs"]
mod tests;

use std::fmt;

/// A program that starts ranks, and tells them so by variables. Its text is its usual name.
///
/// ```
/// assert_eq!(libnccl_launch::Launcher::OpenMpi.to_string(), "OpenMPI");
/// ```
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
    /// A LeaderWorkerSet of Kubernetes, with one process a pod.
    LeaderWorkerSet,
    /// A job of Kubeflow, v1 or Trainer v2, with one process a pod.
    Kubeflow,
    /// A JobSet, or another indexed job, of Kubernetes, with one process a pod.
    JobSet,
    /// A hand or a script that has set `RANK` and `WORLD_SIZE`.
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

use std::fmt;
use std::path::PathBuf;

use crate::error::Attempt;

/// The way in which an implementation of NCCL came into the process.
///
/// ```
/// use libnccl::Backend;
///
/// let nccl = libnccl_cpu::nccl();
/// match nccl.backend() {
///     Backend::Loaded { path, source, .. } => println!("{}, from {source}", path.display()),
///     backend => println!("{backend}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// Linked at build time.
    Linked {
        /// The file that the dynamic linker chose; `None` if the system does not tell.
        path: Option<PathBuf>,
    },
    /// Loaded at run time.
    Loaded {
        /// The file.
        path: PathBuf,
        /// The place in the search that named the file, such as an environment variable.
        source: &'static str,
        /// The places that were searched before, with the candidates that were rejected.
        rejected: Vec<Attempt>,
    },
    /// A function table of this process.
    InProcess {
        /// The name that was given to it.
        name: &'static str,
    },
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linked { path: Some(path) } | Self::Loaded { path, .. } => path.display().fmt(f),
            Self::Linked { path: None } => f.write_str("the linked library"),
            Self::InProcess { name } => f.write_str(name),
        }
    }
}

/// The kind of memory that a communicator works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemorySpace {
    /// Host memory, used by the CPU backend.
    Host,
    /// GPU memory, used by NCCL itself.
    Device,
}

impl fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Device => "device",
        })
    }
}

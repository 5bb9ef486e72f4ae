use std::fmt;

/// The kind of memory that a communicator works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemorySpace {
    /// Host memory, used by the CPU implementation.
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

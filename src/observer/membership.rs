use crate::buffer::MemorySpace;
use crate::observer::CommunicatorId;
use crate::version::Version;

/// A rank's membership in a communicator, as an [`Observer`](crate::observer::Observer) knows it.
///
/// ```
/// use libnccl::{Version, buffer::MemorySpace, observer::Membership};
///
/// // Of a communicator that another program has created.
/// let membership = Membership::new(0, 8, MemorySpace::Device, Version::new(2, 27, 3));
/// assert_eq!((membership.rank, membership.size, membership.id), (0, 8, None));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Membership {
    /// The identity of the communicator, if it is known.
    pub id: Option<CommunicatorId>,
    /// The identity of the communicator from which it was split, shrunk or grown, if it was, and that is known.
    pub parent: Option<CommunicatorId>,
    /// The [name](crate::config::Config::name), if it has one.
    pub name: Option<String>,
    /// The number of this rank, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The memory space of its buffers.
    pub memory_space: MemorySpace,
    /// The release of its NCCL.
    pub nccl: Version,
}

impl Membership {
    /// Creates that of a communicator of which no more is known.
    #[must_use]
    pub fn new(rank: usize, size: usize, memory_space: MemorySpace, nccl: Version) -> Self {
        Self { id: None, parent: None, name: None, rank, size, memory_space, nccl }
    }
}

//! The sizes at which a collective does something else, in bytes. `docs/cpu-performance.md` has what was measured, and on
//! which processors.

use crate::shm::layout::{EAGER_MAX, STAGE};
use crate::sync::primitive::LOOM;

/// Bytes of an input up to which it is eager whatever memory it is in; longer ones that only their rank can use are, up to
/// [`EAGER_MAX`], where they would be staged.
pub(super) const ALWAYS_EAGER_MAX: usize = if LOOM { EAGER_MAX } else { 16 << 10 };

/// Bytes of it for two ranks, where another step costs less than another copy, unless they are processes that reduce. More
/// ranks often have to wait for a CPU in each step.
pub(super) const ALWAYS_EAGER_MAX_OF_TWO: usize = if LOOM { EAGER_MAX } else { 8 << 10 };

/// Bytes of an input up to which the others' are prefetched whole; longer ones the processor prefetches while it reads.
pub(super) const PREFETCH_MAX: usize = 1 << 10;

/// Bytes that are reduced at a time into the rank's own buffer, from which they are copied to the other targets: as many of
/// two sources, and fewer of more, as the result is read again for each.
pub(super) const BLOCK: usize = 32 << 10;
pub(super) const BLOCK_OF_MORE: usize = 8 << 10;

/// Bytes that are reduced at a time beside the buffers.
pub(super) const SCRATCH: usize = 16 << 10;

/// Bytes that are reduced at a time where the result is written by non-temporal stores: reading and writing memory
/// alternate more often.
pub(super) const NONTEMPORAL_BLOCK: usize = 1 << 10;

/// Bytes that are reduced at a time where a copy of them goes to another target.
pub(super) const MIXED_BLOCK: usize = 4 << 10;

/// Bytes that are copied at a time where several ranks receive them, so that they stay in the second-level cache.
pub(super) const COPY_BLOCK: usize = 256 << 10;

/// The bytes that all ranks together write from which on they use non-temporal stores.
pub(super) const NONTEMPORAL_MIN: usize = 32 << 20;

/// The bytes of a part below which cross-memory attach, a system call, always takes longer than staging.
pub(super) const CMA_MIN: usize = 16 << 10;

/// The bytes of it for a reduction, which reads into memory of this rank first.
pub(super) const CMA_MIN_OF_REDUCTION: usize = 64 << 10;

/// Bytes that are reduced at a time after cross-memory attach, so that they are still in the second-level cache when they
/// are needed again.
pub(super) const CMA_BLOCK: usize = 128 << 10;
const _: () = assert!(LOOM || 3 * CMA_BLOCK <= STAGE);

/// The bytes of a staged part from which on memory may be faster than the caches between cores.
pub(super) const STAGED_NONTEMPORAL_MIN: usize = 64 << 10;

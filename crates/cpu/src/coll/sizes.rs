//! The sizes, in bytes, at which a collective changes its method. `docs/cpu-performance.md` lists what each mechanism gains.

use crate::shm::layout::EAGER_MAX;
use crate::sync::primitive::LOOM;

/// Bytes of an input up to which it is eager whatever memory it is in; longer ones that only their rank can use are, up to
/// [`EAGER_MAX`], where they would be staged. Without eager calls, those of up to 16 KiB took 1.8 times as long (geometric
/// mean; AMD EPYC family 26 model 2).
pub(super) const ALWAYS_EAGER_MAX: usize = if LOOM { EAGER_MAX } else { 16 << 10 };

/// Bytes of an input up to which the others' are prefetched whole; longer ones the processor prefetches while it reads.
pub(super) const PREFETCH_MAX: usize = 1 << 10;

/// Bytes that are reduced at a time into the rank's own buffer, from which they are copied to the other targets: as many of
/// two sources, and fewer of more, as the result is read again for each. With a buffer beside them instead, reductions of
/// 64 KiB to 4 MiB took 1.13 times as long (geometric mean; AMD EPYC family 26 model 2).
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

/// The bytes that all ranks together write from which on they use non-temporal stores. Without, calls of 16 and 64 MiB on
/// buffers of `ncclMemAlloc` and of threads took 1.29 times as long (geometric mean; AMD EPYC family 26 model 2).
pub(super) const NONTEMPORAL_MIN: usize = 32 << 20;

//! The innermost part of every transport: reduces or copies the data of one task, block by block.
//!
//! A store to a cache line owned by another core waits for that core. Sufficiently long copies do not wait, because they write whole lines
//! (`rep movsb`). Results are therefore computed in memory private to this core and copied to the others from there.

use crate::coll::plan::Call;
use crate::reduce::reduction::{self, Factor, Reduction};
use crate::shm::buffer::{self, ReadBuf, WriteBuf};

/// Block size in bytes of a reduction into the rank's own buffer, from which the block is copied to the other targets: `BLOCK` for two
/// sources, and less for more sources, because the result is read again for each. With a separate buffer instead, reductions of 64 KiB to 4
/// MiB took 1.13 times as long (geometric mean; AMD EPYC family 26 model 2).
const BLOCK: usize = 32 << 10;
const BLOCK_OF_MORE: usize = 8 << 10;

/// Block size in bytes of a reduction into a scratch buffer.
const SCRATCH: usize = 16 << 10;

/// Block size in bytes of a reduction whose result is written with non-temporal stores. A small block alternates reads and writes of memory
/// more often.
const NONTEMPORAL_BLOCK: usize = 1 << 10;

/// Block size in bytes of a reduction with both non-temporal and ordinary targets.
const MIXED_BLOCK: usize = 4 << 10;

/// Block size in bytes of a copy to several ranks, so that the block stays in the second-level cache.
const COPY_BLOCK: usize = 256 << 10;

/// Number of bytes written by all ranks together from which non-temporal stores are used. Without them, calls of 16 and 64 MiB on buffers
/// of `ncclMemAlloc` and of threads took 1.29 times as long (geometric mean; AMD EPYC family 26 model 2).
const NONTEMPORAL_MIN: usize = 32 << 20;

/// Returns whether the result is too long to remain in a cache until it is used.
pub(super) fn is_nontemporal(call: &Call) -> bool {
    call.written() >= NONTEMPORAL_MIN
}

/// The memory to which a result is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    pub(super) memory: WriteBuf,
    /// Set if it is written with non-temporal stores.
    pub(super) nontemporal: bool,
    /// Set for the rank's own buffer, whose cache lines no other core holds.
    pub(super) is_own: bool,
}

/// Reduces `sources`, or copies the only source, into all `targets`.
pub(super) fn run(call: &Call, sources: &[(ReadBuf, Option<Factor>)], targets: &[Output]) {
    let Some(reduction) = call.reduction else {
        sources.iter().for_each(|(source, _)| copy(*source, targets));
        return;
    };
    let length = sources.first().map_or(0, |(source, _)| source.length());
    let reduce = |result: &mut [u8], at| {
        reduce(call, reduction, result, at, sources.len(), |index| sources[index]);
    };
    let overlaps = |memory| sources.iter().any(|(source, _)| source.overlaps(memory));
    let any_nontemporal = targets.iter().any(|target| target.nontemporal);
    let own = targets.iter().position(|target| target.is_own && !any_nontemporal && !overlaps(target.memory));
    if let Some(own) = own {
        let block = if sources.len() > 2 { BLOCK_OF_MORE } else { BLOCK };
        for at in (0..length).step_by(block) {
            let part = at..length.min(at + block);
            let to = targets[own].memory.slice(part.clone());
            to.fill(|result| reduce(result, at));
            for (_, other) in targets.iter().enumerate().filter(|(index, _)| *index != own) {
                other.memory.slice(part.clone()).copy(to.as_read(), false);
            }
        }
        return;
    }
    let block = if !any_nontemporal {
        SCRATCH
    } else if targets.iter().all(|target| target.nontemporal) {
        NONTEMPORAL_BLOCK
    } else {
        MIXED_BLOCK
    };
    let mut scratch = vec![0; block.min(length)];
    for at in (0..length).step_by(block) {
        let result = &mut scratch[..block.min(length - at)];
        reduce(result, at);
        for Output { memory, nontemporal, .. } in targets {
            if *nontemporal {
                memory.write_nontemporal(at, result);
            } else {
                memory.write(at, result);
            }
        }
    }
    if any_nontemporal {
        buffer::store_fence();
    }
}

/// Copies `source` into all `targets`. With several targets, it copies block by block, so that `source` is read from memory once.
fn copy(source: ReadBuf, targets: &[Output]) {
    let length = source.length();
    let block = if targets.len() > 1 { COPY_BLOCK } else { length.max(1) };
    for at in (0..length).step_by(block) {
        let part = at..length.min(at + block);
        for Output { memory, nontemporal, .. } in targets {
            memory.slice(part.clone()).copy(source.slice(part.clone()), *nontemporal);
        }
    }
}

/// Reduces bytes of `count` sources, at least one, starting at `at`, into `result`.
pub(super) fn reduce(
    call: &Call,
    reduction: Reduction,
    result: &mut [u8],
    at: usize,
    count: usize,
    source: impl Fn(usize) -> (ReadBuf, Option<Factor>),
) {
    let (data_type, length) = (call.data_type, result.len());
    // Empty unless a source is in a window.
    let (mut one, mut two) = (vec![], vec![]);
    let (left, left_factor) = source(0);
    let left = left.bytes(at, length, &mut one);
    if count == 1 {
        reduction::begin(data_type, result, left, left_factor);
    } else {
        let (right, right_factor) = source(1);
        let right = right.bytes(at, length, &mut two);
        reduction::join(reduction, data_type, result, left, left_factor, right, right_factor);
    }
    for (source, factor) in (2..count).map(source) {
        reduction::combine(reduction, data_type, result, source.bytes(at, length, &mut one), factor);
    }
    reduction::finish(reduction, data_type, call.ranks, result);
}

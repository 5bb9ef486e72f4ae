//! The innermost part of every transport: reducing or copying one task's data, a block at a time.

use crate::coll::plan::Call;
use crate::reduce::reduction::{Factor, Reduction};
use crate::shm::buffer::{self, ReadBuf, WriteBuf};

/// Bytes that are reduced at a time, so that they stay in the first-level cache.
const BLOCK: usize = 4 << 10;

/// Bytes that are reduced at a time where the result is written by non-temporal stores: reading and writing memory
/// alternate more often.
const NON_TEMPORAL_BLOCK: usize = 1 << 10;

/// The bytes that all ranks together write from which on they use non-temporal stores.
const NON_TEMPORAL_MIN: usize = 32 << 20;

/// Returns `true` if the result is too long to be still in a cache when it is needed.
pub(super) fn is_nontemporal(call: &Call) -> bool {
    call.written() >= NON_TEMPORAL_MIN
}

/// Returns the memory that [`run`] reduces in.
pub(super) fn scratch(call: &Call) -> Vec<u8> {
    vec![0; BLOCK.min(call.bytes)]
}

/// Reduces `sources`, or copies the only one, into all `targets`.
pub(super) fn run(
    call: &Call,
    sources: &[(ReadBuf, Option<Factor>)],
    targets: &[WriteBuf],
    scratch: &mut [u8],
) {
    let nontemporal = is_nontemporal(call);
    let Some(reduction) = call.reduction else {
        for target in targets {
            sources.iter().for_each(|(source, _)| target.copy(*source, nontemporal));
        }
        return;
    };
    let length = sources.first().map_or(0, |(source, _)| source.length());
    let block = if nontemporal { NON_TEMPORAL_BLOCK } else { BLOCK };
    for at in (0..length).step_by(block) {
        let result = &mut scratch[..block.min(length - at)];
        reduce(call, reduction, result, at, sources.iter().copied());
        for target in targets {
            if nontemporal {
                target.write_nontemporal(at, result);
            } else {
                target.write(at, result);
            }
        }
    }
    if nontemporal {
        buffer::store_fence();
    }
}

/// Reduces the bytes of the sources from `at` on into `result`.
pub(super) fn reduce(
    call: &Call,
    reduction: Reduction,
    result: &mut [u8],
    at: usize,
    mut sources: impl Iterator<Item = (ReadBuf, Option<Factor>)>,
) {
    let (data_type, length) = (call.data_type, result.len());
    // Empty unless a source is in a window.
    let (mut one, mut two) = (vec![], vec![]);
    match (sources.next(), sources.next()) {
        (Some((left, left_factor)), Some((right, right_factor))) => {
            let (left, right) = (left.bytes(at, length, &mut one), right.bytes(at, length, &mut two));
            reduction.join(data_type, result, left, left_factor, right, right_factor);
        }
        (Some((only, factor)), None) => {
            reduction.begin(data_type, result, only.bytes(at, length, &mut one), factor);
        }
        (None, _) => {}
    }
    for (source, factor) in sources {
        reduction.combine(data_type, result, source.bytes(at, length, &mut one), factor);
    }
    reduction.finish(data_type, call.ranks, result);
}

//! The handles of communicators, which are numbers, and their names in the log.

use std::ptr;

use libnccl::sys::ncclComm_t;

const NUMBER_BITS: u32 = 24;

/// Returns the handle of communicator `number` of a fake, which is not an address.
pub(super) fn handle(fake: usize, number: usize) -> ncclComm_t {
    ptr::without_provenance_mut((fake << NUMBER_BITS | (number + 1)) << 8)
}

pub(super) fn number(raw: ncclComm_t) -> Option<usize> {
    ((raw.addr() >> 8) & ((1 << NUMBER_BITS) - 1)).checked_sub(1)
}

/// Returns the number of the fake that a communicator belongs to.
pub(super) fn fake(raw: ncclComm_t) -> usize {
    raw.addr() >> 8 >> NUMBER_BITS
}

/// Returns a communicator's name in the log.
pub(super) fn comm_name(raw: ncclComm_t) -> String {
    number(raw).map_or_else(|| "null".into(), |number| format!("comm{number}"))
}

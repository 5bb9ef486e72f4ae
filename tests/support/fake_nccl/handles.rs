//! The handles of communicators, which are numbers, and their names in the log.

use std::ptr;

use libnccl::sys::ncclComm_t;

/// Returns the handle of communicator `number`, which is not an address.
pub(super) fn handle(number: usize) -> ncclComm_t {
    ptr::without_provenance_mut((number + 1) << 8)
}

pub(super) fn number(raw: ncclComm_t) -> Option<usize> {
    (raw.addr() >> 8).checked_sub(1)
}

/// Returns a communicator's name in the log.
pub(super) fn comm_name(raw: ncclComm_t) -> String {
    number(raw).map_or_else(|| "null".into(), |number| format!("comm{number}"))
}

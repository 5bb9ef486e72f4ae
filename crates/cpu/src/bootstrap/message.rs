//! The messages between the root and the processes of its peers, but for [`Hello`](super::hello::Hello), and the errors
//! that they report.

use crate::diag::error::Error;

/// The longest message in bytes: a result code and a text.
pub(super) const MAX_MESSAGE: usize = 1024;

/// The message of a process that has opened the shared state.
pub(super) const READY: &[u8] = b"ready";

const ABORTED: [u8; 8] = *b"aborted\0";

/// Returns the message that a rank was cancelled.
pub(super) fn aborted(rank: usize) -> [u8; 12] {
    let mut message = [0; 12];
    message[..8].copy_from_slice(&ABORTED);
    message[8..].copy_from_slice(&(rank as u32).to_ne_bytes());
    message
}

/// Returns the rank that was cancelled, if `message` says that.
pub(super) fn aborted_rank(message: &[u8]) -> Option<usize> {
    let rank = message.strip_prefix(&ABORTED)?.try_into().ok()?;
    Some(u32::from_ne_bytes(rank) as usize)
}

pub(super) fn died(rank: usize) -> Error {
    Error::remote(format!("rank {rank} died before all ranks had joined"))
}

pub(super) fn cancelled(rank: usize) -> Error {
    Error::remote(format!("rank {rank} was cancelled or aborted before all ranks had joined"))
}

pub(super) fn duplicate(rank: usize) -> Error {
    Error::usage(format!("two callers passed rank {rank}"))
}

//! The messages between the root and the processes of its peers, but for [`Hello`](super::hello::Hello), and the errors
//! that they report.

use std::time::Instant;

use crate::bootstrap::socket::{LIVENESS_INTERVAL, POLL_INTERVAL};
use crate::diag::error::Error;
use crate::shm::process::Process;

/// The longest message in bytes: a result code and a text.
pub(super) const MAX_MESSAGE: usize = 1024;

/// The message of a process that has opened the shared state.
pub(super) const READY: &[u8] = b"ready";

const ABORTED: [u8; 8] = *b"aborted\0";
const FAILED: [u8; 8] = *b"failed\0\0";
const REFUSED: [u8; 8] = *b"refused\0";

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

/// Returns the message that the call of a rank has failed.
pub(super) fn failed(rank: usize, error: &Error) -> Vec<u8> {
    let text = &error.text.as_bytes()[..error.text.len().min(MAX_MESSAGE - 12)];
    [&FAILED, &(rank as u32).to_ne_bytes()[..], text].concat()
}

/// Returns the message that the call of a process, which has no valid rank, has failed.
pub(super) fn refused(process: u32, error: &Error) -> Vec<u8> {
    let mut message = failed(process as usize, error);
    message[..8].copy_from_slice(&REFUSED);
    message
}

/// Returns the error of the other ranks, if `message` says that the call of one has failed.
pub(super) fn failure(message: &[u8]) -> Option<Error> {
    let (kind, rest) = message.split_first_chunk()?;
    let (number, text) = rest.split_first_chunk()?;
    let number = u32::from_ne_bytes(*number);
    let who = match *kind {
        FAILED => format!("rank {number}"),
        REFUSED => format!("the call of process {number}"),
        _ => return None,
    };
    let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
    Some(Error::remote(format!("{who} failed before all ranks had joined: {text}")))
}

/// Returns the error about `who`, whose connection has ended without a message: its process has ended, or only its call.
/// `process` is that process, if it is known.
pub(super) fn gone(who: &str, process: Option<Process>) -> Error {
    let began = Instant::now();
    // The kernel closes the sockets of a process a little before it has ended.
    let ended = |process: Process| loop {
        if process.ended() || began.elapsed() >= LIVENESS_INTERVAL {
            return process.ended();
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    Error::remote(match process.map(ended) {
        Some(true) => format!("{who} is gone: its process ended before all ranks had joined"),
        Some(false) => {
            format!("{who} left before all ranks had joined: its process still runs, but its call has ended")
        }
        None => format!("{who} is gone: it left, or its process ended, before all ranks had joined"),
    })
}

pub(super) fn cancelled(rank: usize) -> Error {
    Error::remote(format!("rank {rank} was cancelled or aborted before all ranks had joined"))
}

pub(super) fn duplicate(rank: usize) -> Error {
    Error::usage(format!("two callers passed rank {rank}"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn rank_that_has_left_is_not_called_dead() {
        let text = |process| gone("rank 3", process).text;
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::from_pid(child.id().into()).unwrap();
        assert!(text(Some(process)).starts_with("rank 3 left before all ranks had joined: "));
        assert!(text(Process::current().ok()).starts_with("rank 3 left before all ranks had joined: "));
        // It ends while the answer is sought, as after the end of its connection.
        let killed = std::thread::spawn(move || {
            std::thread::sleep(LIVENESS_INTERVAL / 4);
            child.kill().unwrap();
            child.wait().unwrap();
        });
        assert_eq!(text(Some(process)), "rank 3 is gone: its process ended before all ranks had joined");
        killed.join().unwrap();
        assert_eq!(text(Some(process)), "rank 3 is gone: its process ended before all ranks had joined");
        assert_eq!(text(None), "rank 3 is gone: it left, or its process ended, before all ranks had joined");
    }
}

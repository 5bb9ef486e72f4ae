//! The abort flag, departures, and dead ranks: what ends a wait for another rank.
//!
//! A waiting rank tests what it waits for first and the abort flag second, so what a rank did before it departed or
//! aborted still counts.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::Poll;

use crate::diag::error::{Error, Result};
use crate::shm::layout::{ABORT_FLAG, DEPARTED};
use crate::shm::shared_state::SharedState;
use crate::sync::backoff;

/// The reason for which a rank can no longer be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum AbortReason {
    Died = 1,
    Aborted = 2,
    Failed = 3,
    Revoked = 4,
    Shrunk = 5,
    TimedOut = 6,
}

thread_local! {
    static AWAITED: Cell<usize> = const { Cell::new(0) };
}

/// Returns the rank for which the operation that this thread has polled last waits.
pub(crate) fn awaited() -> usize {
    AWAITED.get()
}

impl SharedState {
    /// Waits until `done`, which depends on `rank`.
    pub(crate) async fn wait(&self, rank: usize, mut done: impl FnMut() -> bool) -> Result {
        if done() {
            return Ok(());
        }
        poll_fn(|_| {
            if !done() {
                let Err(error) = self.check_peer(rank) else {
                    AWAITED.set(rank);
                    return Poll::Pending;
                };
                // It may have been done just before the abort.
                if !done() {
                    return Poll::Ready(Err(error));
                }
            }
            backoff::note_progress();
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Returns an error if waiting for `rank` is in vain.
    pub(crate) fn check_peer(&self, rank: usize) -> Result {
        self.check_abort()?;
        if self.has_departed(rank) {
            return Err(Error::remote(format!(
                "rank {rank} has left: its communicator was finalized or destroyed"
            )));
        }
        Ok(())
    }

    /// Returns an error if `rank` has departed or its process has ended, whatever the other ranks did.
    pub(crate) fn check_alive(&self, rank: usize) -> Result {
        if self.has_departed(rank) {
            return Err(Error::remote(format!("rank {rank} has left: its communicator is gone")));
        }
        let process = &self.processes[rank];
        if process.pid != u64::from(std::process::id()) && process.ended() {
            return Err(Error::remote(format!("rank {rank} died: its process has ended")));
        }
        Ok(())
    }

    /// Returns an error if the abort flag is set.
    pub(crate) fn check_abort(&self) -> Result {
        let flag = self.segment.word(ABORT_FLAG).load(Acquire);
        let (rank, reason) = (flag >> 8, flag & 0xff);
        let what = match reason {
            0 => return Ok(()),
            reason if reason == AbortReason::Died as u64 => {
                "died: its process ended without destroying the communicator"
            }
            reason if reason == AbortReason::Aborted as u64 => "aborted the communicator",
            reason if reason == AbortReason::TimedOut as u64 => {
                "waited longer than LIBNCCL_CPU_TIMEOUT; its standard error says for whom"
            }
            reason if reason == AbortReason::Revoked as u64 => "revoked the communicator",
            reason if reason == AbortReason::Shrunk as u64 => {
                "shrank the communicator with NCCL_SHRINK_ABORT"
            }
            _ => "failed",
        };
        Err(Error::remote(format!("rank {rank} {what}")))
    }

    /// Sets the abort flag on behalf of `rank`, unless it is set: the first reason counts.
    pub(crate) fn set_abort(&self, rank: usize, reason: AbortReason) {
        let flag = (rank as u64) << 8 | reason as u64;
        let _ = self.segment.word(ABORT_FLAG).compare_exchange(0, flag, AcqRel, Relaxed);
    }

    /// Records that `rank` does nothing more.
    pub(crate) fn depart(&self, rank: usize) {
        self.control(rank, DEPARTED).store(1, Release);
    }

    /// Returns `true` if `rank` does nothing more.
    pub(crate) fn has_departed(&self, rank: usize) -> bool {
        self.control(rank, DEPARTED).load(Acquire) != 0
    }

    /// Sets the abort flag if the process of a rank has ended.
    pub(crate) fn check_liveness(&self) {
        let own = u64::from(std::process::id());
        let mut last = None;
        for (rank, process) in self.processes.iter().enumerate() {
            // Ranks are often threads of one process: one check serves them all.
            let is_checked = process.pid == own || last == Some(process);
            last = Some(process);
            // It may depart and end during the check.
            if !is_checked && !self.has_departed(rank) && process.ended() && !self.has_departed(rank) {
                self.set_abort(rank, AbortReason::Died);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::process::Process;

    #[test]
    fn first_abort_reason_is_reported() {
        let state = SharedState::create(&[Process::current().unwrap(); 2]).unwrap().0;
        assert!(state.check_abort().is_ok());
        state.set_abort(1, AbortReason::Aborted);
        state.set_abort(0, AbortReason::Died);
        assert_eq!(state.check_abort().unwrap_err().text, "rank 1 aborted the communicator");
    }

    #[test]
    fn liveness_check_finds_an_ended_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = Process::from_pid(child.id().into()).unwrap();
        let (state, _) = SharedState::create(&[Process::current().unwrap(), other]).unwrap();
        state.check_liveness();
        assert!(state.check_abort().is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        state.check_liveness();
        assert!(state.check_abort().unwrap_err().text.starts_with("rank 1 died"));
    }
}

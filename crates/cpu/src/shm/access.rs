//! Access to other ranks' memory, and waiting until no rank accesses this rank's memory.
//!
//! A process that is stopped during an access (by a signal, a debugger or a frozen cgroup) may never finish it. Memory that it
//! has mapped is then taken back: see [`mem_alloc::take_back`].
#![cfg_attr(test, allow(unsafe_code))]

use std::future::poll_fn;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::task::Poll;
use std::time::{Duration, Instant};

use cuda_common::finding::Finding;

use crate::diag::error::{Error, Result};
use crate::diag::report;
use crate::diag::settings::WARN_AFTER;
use crate::shm::buffer::ReadBuf;
use crate::shm::layout::{ACCESSES, WINDOWS};
use crate::shm::liveness::AbortReason;
use crate::shm::mem_alloc;
use crate::shm::shared_state::SharedState;
use crate::sync::primitive::{AtomicU64, LOOM, fence};

/// Added to a rank's accesses word when an access ends. Its lower half counts current accesses, its upper half ended ones.
const ENDED: u64 = (1 << 32) - 1;

/// A rank's window, as other ranks identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowId {
    /// The index of the window's word among the rank's window words.
    pub(crate) index: usize,
    /// The word's value while the window is open, unique among the rank's windows.
    pub(crate) serial: u64,
}

/// The time between two checks that a rank accessing this rank's memory is still running.
const LIVENESS_INTERVAL: Duration = if LOOM { Duration::MAX } else { Duration::from_millis(10) };

/// The time before memory is taken back from a process that does not appear to be stopped. Processes in a frozen cgroup appear to
/// be sleeping.
const PATIENCE: Duration = Duration::from_secs(1);

const RETRY: Duration = Duration::from_secs(1);

/// A rank's memory that other ranks may access until the rank reclaims it.
#[derive(Clone, Copy)]
pub(crate) struct Exposed<'a> {
    pub(crate) buffers: &'a [ReadBuf],
    /// The maximum number of windows that contain the memory.
    pub(crate) windows: usize,
}

impl Exposed<'_> {
    fn take_back(&self) -> Result {
        let take = |buffer: &ReadBuf| mem_alloc::take_back(buffer.start(), buffer.length(), self.windows);
        self.buffers.iter().try_for_each(take)
    }
}

/// RAII guard of a rank's access to other ranks' memory.
pub(crate) struct AccessGuard<'a>(&'a AtomicU64);

impl Drop for AccessGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(ENDED, Release);
    }
}

impl SharedState {
    /// Begins an access by `rank` to other ranks' user buffers. The access ends when the guard is dropped.
    ///
    /// The accessor sets its flag, then checks for abort; the aborter sets abort, then checks for accessors. `SeqCst` fences
    /// ensure that at least one of them observes the other.
    pub(crate) fn begin_access(&self, rank: usize) -> Result<AccessGuard<'_>> {
        let access = AccessGuard(&self.control(rank)[ACCESSES]);
        access.0.fetch_add(1, Relaxed);
        fence(SeqCst);
        self.check_abort()?;
        Ok(access)
    }

    /// Cleans up after an operation of `rank` that failed after publishing its buffers: sets the abort flag and waits until no
    /// other rank accesses `exposed`, which then belongs to the caller again.
    pub(crate) async fn quiesce(&self, rank: usize, exposed: Exposed<'_>) {
        self.set_abort(rank, AbortReason::Failed);
        self.wait_for_accesses(rank, exposed).await;
    }

    /// Opens a window of `rank`, or returns `None` if it already has [`WINDOWS`] windows.
    pub(crate) fn open_window(&self, rank: usize) -> Option<WindowId> {
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let serial = LAST.fetch_add(1, Relaxed) + 1;
        let open =
            |index: &usize| self.window(rank, *index).compare_exchange(0, serial, Release, Relaxed).is_ok();
        (0..WINDOWS).find(open).map(|index| WindowId { index, serial })
    }

    /// Returns `true` if a window of `rank` is open. While an [`AccessGuard`] is held, the window's memory can then be accessed.
    pub(crate) fn is_window_open(&self, rank: usize, window: WindowId) -> bool {
        window.index < WINDOWS && self.window(rank, window.index).load(Acquire) == window.serial
    }

    /// Closes a window of `rank` and waits until no other rank accesses its memory, `exposed`, which then belongs to the caller
    /// again.
    ///
    /// The accessor sets its flag, then checks that the window is open; the owner closes the window, then checks for accessors,
    /// as with the abort flag.
    pub(crate) async fn close_window(&self, rank: usize, window: WindowId, exposed: Exposed<'_>) {
        self.window(rank, window.index).store(0, Relaxed);
        self.wait_for_accesses(rank, exposed).await;
    }

    /// Waits until all accesses that other ranks have already begun have ended or can no longer reach `exposed`.
    async fn wait_for_accesses(&self, rank: usize, exposed: Exposed<'_>) {
        let split = |accesses: u64| (accesses as u32, (accesses >> 32) as u32);
        fence(SeqCst);
        let (begin, mut is_taken, mut tried, mut is_reported) = (Instant::now(), false, None, false);
        for other in (0..self.ranks()).filter(|other| *other != rank) {
            let accesses = &self.control(other)[ACCESSES];
            let (begun, before) = split(accesses.load(Acquire));
            let mut checked = Instant::now();
            poll_fn(|_| {
                // A rank that keeps accessing other memory must not block this wait forever.
                let (present, ended) = split(accesses.load(Acquire));
                if present == 0 || ended.wrapping_sub(before) >= begun {
                    return Poll::Ready(());
                }
                if checked.elapsed() < LIVENESS_INTERVAL {
                    return Poll::Pending;
                }
                checked = Instant::now();
                if self.death(other).is_some() {
                    return Poll::Ready(());
                }
                let (process, waited) = (self.process(other), begin.elapsed());
                if process == self.process(rank) {
                    // A thread of this process runs as long as this one.
                    return Poll::Pending;
                }
                let is_due = tried.as_ref().is_none_or(|(at, _): &(Instant, Error)| at.elapsed() >= RETRY);
                if !is_taken && is_due && (waited >= PATIENCE || process.is_stopped()) {
                    match exposed.take_back() {
                        Ok(()) => is_taken = true,
                        Err(error) => tried = Some((Instant::now(), error)),
                    }
                }
                if is_taken {
                    return Poll::Ready(());
                }
                if !is_reported && WARN_AFTER.is_some_and(|limit| waited >= limit) {
                    is_reported = true;
                    let why = tried.as_ref().map_or("", |(_, why)| &why.text);
                    report::report(Finding::LateRank, rank, &self.describe_access(rank, other, waited, why));
                }
                Poll::Pending
            })
            .await;
        }
    }

    /// Describes the wait for `other` to end an access to memory of `rank`, which is not taken back for the reason `why`.
    #[cold]
    fn describe_access(&self, rank: usize, other: usize, waited: Duration, why: &str) -> String {
        let process = self.process(other);
        let state = process.state().map_or_else(String::new, |state| format!(", in state {state}"));
        let condition =
            process.condition().map_or_else(String::new, |condition| format!(", which {condition},"));
        format!(
            "after {:.1} s, in {}, rank {rank} of {} still waits for rank {other} (process {}{state}){condition} to end an \
             access to the memory of rank {rank}, which cannot be taken back: {why}; continue or kill that process",
            waited.as_secs_f64(),
            self.name(),
            self.ranks(),
            process.pid
        )
    }
}

#[cfg(test)]
#[path = "../../tests/unit/access.rs"]
mod tests;

//! Access to other ranks' memory, and how a rank that takes its own back waits until nobody accesses it.

use std::future::poll_fn;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::diag::error::Result;
use crate::shm::layout::{ACCESSES, WINDOWS};
use crate::shm::liveness::AbortReason;
use crate::shm::shared_state::SharedState;
use crate::sync::primitive::{AtomicU64, LOOM, fence};

/// The change of a rank's word when an access ends: the lower half counts the present accesses, the upper one those that
/// have ended.
const ENDED: u64 = (1 << 32) - 1;

/// A window of a rank, as the others know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowId {
    /// The number of its word among its rank's.
    pub(crate) index: usize,
    /// The word's value as long as the window is open, which no other window of the rank ever has.
    pub(crate) serial: u64,
}

/// The interval in which a rank checks that a rank that accesses its memory still runs.
const LIVENESS_INTERVAL: Duration = if LOOM { Duration::MAX } else { Duration::from_millis(10) };

/// A rank's access to other ranks' memory.
#[derive(Debug)]
pub(crate) struct AccessGuard<'a>(&'a AtomicU64);

impl Drop for AccessGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(ENDED, Release);
    }
}

impl SharedState {
    /// Begins `rank`'s access to the memory of other ranks' callers, which lasts until the guard is dropped.
    ///
    /// The accessor sets its flag, then checks for abort; the aborter sets abort, then checks for accessors. Their
    /// `SeqCst` fences ensure that one sees the other.
    ///
    /// # Errors
    /// The abort flag is set.
    pub(crate) fn begin_access(&self, rank: usize) -> Result<AccessGuard<'_>> {
        let access = AccessGuard(&self.control(rank)[ACCESSES]);
        access.0.fetch_add(1, Relaxed);
        fence(SeqCst);
        self.check_abort()?;
        Ok(access)
    }

    /// Ends an operation of `rank` that has failed after its buffers were published: sets the abort flag and waits
    /// until no other rank accesses them, after which they are the caller's again.
    pub(crate) async fn quiesce(&self, rank: usize) {
        self.set_abort(rank, AbortReason::Failed);
        self.wait_for_accesses(rank).await;
    }

    /// Opens a window of `rank`; `None` if it has as many as there can be.
    pub(crate) fn open_window(&self, rank: usize) -> Option<WindowId> {
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let serial = LAST.fetch_add(1, Relaxed) + 1;
        let open =
            |index: &usize| self.window(rank, *index).compare_exchange(0, serial, Release, Relaxed).is_ok();
        (0..WINDOWS).find(open).map(|index| WindowId { index, serial })
    }

    /// Returns `true` if a window of `rank` is open. With an [`AccessGuard`], its memory can then be accessed.
    pub(crate) fn is_window_open(&self, rank: usize, window: WindowId) -> bool {
        window.index < WINDOWS && self.window(rank, window.index).load(Acquire) == window.serial
    }

    /// Closes a window of `rank` and waits until no other rank accesses its memory, which is the caller's again.
    ///
    /// The accessor sets its flag, then checks that the window is open; the owner closes it, then checks for accessors,
    /// as with the abort flag.
    pub(crate) async fn close_window(&self, rank: usize, window: WindowId) {
        self.window(rank, window.index).store(0, Relaxed);
        self.wait_for_accesses(rank).await;
    }

    /// Waits until the accesses of other ranks that have begun by now have ended.
    async fn wait_for_accesses(&self, rank: usize) {
        let split = |accesses: u64| (accesses as u32, (accesses >> 32) as u32);
        fence(SeqCst);
        for other in (0..self.ranks()).filter(|other| *other != rank) {
            let accesses = &self.control(other)[ACCESSES];
            let (begun, before) = split(accesses.load(Acquire));
            let mut checked = Instant::now();
            poll_fn(|_| {
                // A rank that goes on to access other memory must not make this wait endlessly.
                let (present, ended) = split(accesses.load(Acquire));
                if present == 0 || ended.wrapping_sub(before) >= begun {
                    return Poll::Ready(());
                }
                if checked.elapsed() >= LIVENESS_INTERVAL {
                    checked = Instant::now();
                    if self.death(other).is_some() {
                        return Poll::Ready(());
                    }
                }
                Poll::Pending
            })
            .await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::process::Process;
    use crate::sync::executor;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn quiesce_waits_until_accesses_have_ended() {
        let state = SharedState::create(&[Process::current().unwrap(); 2]).unwrap().0;
        let done = AtomicBool::new(false);
        let access = state.begin_access(1).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let quiesce = async {
                    state.quiesce(0).await;
                    Ok(())
                };
                executor::run_one(quiesce, 2, |_| ()).unwrap();
                assert!(done.load(Acquire), "accessed");
            });
            while state.check_abort().is_ok() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(5));
            done.store(true, Release);
            drop(access);
        });
        assert!(state.begin_access(1).is_err(), "too late to begin");
    }

    #[test]
    fn closed_window_waits_for_accesses_that_have_begun_and_no_others() {
        let state = SharedState::create(&[Process::current().unwrap(); 2]).unwrap().0;
        let window = state.open_window(0).unwrap();
        assert!(state.is_window_open(0, window) && !state.is_window_open(1, window));
        let access = state.begin_access(1).unwrap();
        std::thread::scope(|scope| {
            let close = scope.spawn(|| {
                let close = async {
                    state.close_window(0, window).await;
                    Ok(())
                };
                executor::run_one(close, 2, |_| ())
            });
            while state.is_window_open(0, window) {
                std::thread::yield_now();
            }
            // By now it has seen which accesses have begun.
            std::thread::sleep(Duration::from_millis(100));
            assert!(!close.is_finished(), "accessed");
            drop(access);
            // Another access follows at once.
            let _access = state.begin_access(1).unwrap();
            close.join().unwrap().unwrap();
        });
        let next = state.open_window(0).unwrap();
        assert_eq!(next.index, window.index);
        assert!(!state.is_window_open(0, window) && state.is_window_open(0, next));
        let outside = WindowId { index: WINDOWS, serial: 0 };
        assert!(!state.is_window_open(0, outside));
    }
}

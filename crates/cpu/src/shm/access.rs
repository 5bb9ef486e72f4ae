//! Access to other ranks' memory, and how a failing rank waits until nobody accesses its own.

use std::future::poll_fn;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::diag::error::Result;
use crate::shm::layout::ACCESSES;
use crate::shm::liveness::AbortReason;
use crate::shm::shared_state::SharedState;
use crate::sync::primitive::{AtomicU64, LOOM, fence};

/// The interval in which a failing rank checks that a rank that accesses its memory still runs.
const LIVENESS_INTERVAL: Duration = if LOOM { Duration::MAX } else { Duration::from_millis(10) };

/// A rank's access to other ranks' memory.
#[derive(Debug)]
pub(crate) struct AccessGuard<'a>(&'a AtomicU64);

impl Drop for AccessGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
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
        let access = AccessGuard(self.control(rank, ACCESSES));
        access.0.fetch_add(1, Relaxed);
        fence(SeqCst);
        self.check_abort()?;
        Ok(access)
    }

    /// Ends an operation of `rank` that has failed after its buffers were published: sets the abort flag and waits
    /// until no other rank accesses them, after which they are the caller's again.
    pub(crate) async fn quiesce(&self, rank: usize) {
        self.set_abort(rank, AbortReason::Failed);
        fence(SeqCst);
        for other in (0..self.ranks()).filter(|other| *other != rank) {
            let accesses = self.control(other, ACCESSES);
            let mut checked = Instant::now();
            poll_fn(|_| {
                if accesses.load(Acquire) == 0 {
                    return Poll::Ready(());
                }
                if checked.elapsed() >= LIVENESS_INTERVAL {
                    checked = Instant::now();
                    if self.processes[other].ended() {
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
}

//! The abort flag, departures, and dead ranks: everything that ends a wait for another rank.
//!
//! A waiting rank tests its condition first and the abort flag second, so everything that a rank did before it departed or
//! aborted still counts.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use crate::diag::error::{Error, Result};
use crate::shm::layout::{ABORT_FLAG, DEPARTED, LAST_CHECK, PROGRAM};
use crate::shm::shared_state::SharedState;
use crate::sync::backoff;
use crate::sync::primitive::{AtomicU64, LOOM, sleep_on, wake_all};

const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The value of a rank's sleepers word while other ranks sleep until it makes progress.
const SLEEPERS: u64 = 1 << 32 | 1;

/// A value of a rank's departed word, like [`LEFT`] (made all its calls) and [`ABORTED`]. This value: any other reason.
const DEPARTED_ANYHOW: u64 = 1;
const LEFT: u64 = 2;
const ABORTED: u64 = 3;

/// The bit position of the late rank in the abort flag. The lower bits hold the reason and the rank that set the flag.
const LATE: u32 = 32;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum AbortReason {
    Died = 1,
    Aborted = 2,
    Failed = 3,
    Revoked = 4,
    Shrunk = 5,
    TimedOut = 6,
    Executed = 7,
}

impl AbortReason {
    /// Returns the reason in the abort flag, if the flag is set.
    fn of(flag: u64) -> Option<Self> {
        use AbortReason::{Aborted, Died, Executed, Failed, Revoked, Shrunk, TimedOut};
        let all = [Died, Aborted, Failed, Revoked, Shrunk, TimedOut, Executed];
        if flag == 0 {
            return None;
        }
        all.into_iter().find(|reason| *reason as u64 == flag & 0xff).or(Some(Failed))
    }
}

thread_local! {
    static AWAITED: Cell<usize> = const { Cell::new(0) };
}

/// Returns the rank for which this thread's most recently polled operation waits.
pub(crate) fn awaited() -> usize {
    AWAITED.get()
}

fn rank_of(flag: u64) -> usize {
    (flag as u32 >> 8) as usize
}

impl SharedState {
    /// Waits until `done` returns `true`. This depends on the progress of `rank`.
    pub(crate) async fn wait(&self, rank: usize, mut done: impl FnMut() -> bool) -> Result {
        if done() {
            return Ok(());
        }
        poll_fn(|_| {
            if !done() {
                let checked = self.check_peer(rank);
                if checked.is_ok() {
                    AWAITED.set(rank);
                    self.sleep(rank, &mut done);
                }
                // The condition may have become true just before the abort, or during the sleep.
                if !done() {
                    return if checked.is_ok() { Poll::Pending } else { Poll::Ready(checked) };
                }
            }
            backoff::note_progress();
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Sleeps until `rank` makes progress, if this thread has waited for long and runs no other operation.
    ///
    /// A rank checks for sleepers after making progress, without a fence, and may miss a sleeper that has tested its condition
    /// just before. That sleeper wakes after its timeout.
    fn sleep(&self, rank: usize, done: &mut impl FnMut() -> bool) {
        let Some(longest) = backoff::take_nap() else { return };
        let sleepers = self.segment.word(self.layout.sleepers(rank));
        sleepers.store(SLEEPERS, SeqCst);
        if !done() && self.check_peer(rank).is_ok() {
            sleep_on(sleepers, SLEEPERS, longest);
        }
    }

    /// Wakes the ranks that sleep until `rank` makes progress. Call this after `rank` has made progress.
    #[inline]
    pub(crate) fn wake_waiting(&self, rank: usize) {
        let sleepers = self.segment.word(self.layout.sleepers(rank));
        if !LOOM && sleepers.load(Relaxed) != 0 {
            wake(sleepers);
        }
    }

    /// Returns an error if `rank` can no longer make progress.
    pub(crate) fn check_peer(&self, rank: usize) -> Result {
        self.check_abort()?;
        match self.control(rank)[DEPARTED].load(Acquire) {
            0 => Ok(()),
            ABORTED => Err(aborted(rank)),
            _ => Err(departed(rank)),
        }
    }

    /// Returns an error if `rank` has departed or its process has ended, regardless of the other ranks.
    pub(crate) fn check_alive(&self, rank: usize) -> Result {
        match self.control(rank)[DEPARTED].load(Acquire) {
            0 => {}
            ABORTED => return Err(aborted(rank)),
            _ => return Err(departed(rank)),
        }
        if self.processes[rank].pid == u64::from(std::process::id()) {
            return Ok(());
        }
        let how = match self.death(rank) {
            None => return Ok(()),
            Some(AbortReason::Executed) => "executed another program",
            Some(_) => "ended",
        };
        Err(Error::remote(format!("rank {rank} died: its process has {how}")))
    }

    /// Returns how the process of `rank` died, if it has certainly died.
    pub(crate) fn death(&self, rank: usize) -> Option<AbortReason> {
        if self.processes[rank].ended() {
            return Some(AbortReason::Died);
        }
        self.has_executed_another(rank).then_some(AbortReason::Executed)
    }

    /// Returns `true` if the process of `rank` has certainly executed another program, which does not contain the rank.
    pub(crate) fn has_executed_another(&self, rank: usize) -> bool {
        let (process, program) = (&self.processes[rank], self.control(rank)[PROGRAM].load(Relaxed));
        process.pid != u64::from(std::process::id()) && process.has_executed_another(program)
    }

    pub(crate) fn check_abort(&self) -> Result {
        let flag = self.segment.word(ABORT_FLAG).load(Acquire);
        let Some(reason) = AbortReason::of(flag) else { return Ok(()) };
        let (rank, late) = (rank_of(flag), flag >> LATE);
        let what = match reason {
            AbortReason::Died => "died: its process ended without destroying the communicator",
            AbortReason::Executed => {
                "died: its process executed another program without destroying the communicator"
            }
            AbortReason::Aborted => "aborted the communicator",
            AbortReason::TimedOut => &format!(
                "waited longer than LIBNCCL_CPU_TIMEOUT for rank {late} (more on its standard error)"
            ),
            AbortReason::Revoked => "revoked the communicator",
            AbortReason::Shrunk => "shrank the communicator with NCCL_SHRINK_ABORT",
            AbortReason::Failed => "failed",
        };
        Err(Error::remote(format!("rank {rank} {what}")))
    }

    /// Returns an error if a rank's wait has timed out. A timeout aborts the communicator for all ranks, but without this check,
    /// a late rank may find everything it needs and continue.
    #[inline]
    pub(crate) fn check_timed_out(&self) -> Result {
        let flag = self.segment.word(ABORT_FLAG).load(Relaxed);
        if flag & 0xff == AbortReason::TimedOut as u64 { self.check_abort() } else { Ok(()) }
    }

    /// Returns `true` if the abort flag is set because a rank revoked its communicator, or shrank it.
    pub(crate) fn is_stopped(&self) -> bool {
        let reason = AbortReason::of(self.segment.word(ABORT_FLAG).load(Acquire));
        matches!(reason, Some(AbortReason::Revoked | AbortReason::Shrunk))
    }

    /// Returns the rank that aborted, revoked or shrank the communicator by a call.
    pub(crate) fn ended_by(&self) -> Option<usize> {
        use AbortReason::{Aborted, Revoked, Shrunk};
        let flag = self.segment.word(ABORT_FLAG).load(Acquire);
        matches!(AbortReason::of(flag), Some(Aborted | Revoked | Shrunk)).then_some(rank_of(flag))
    }

    /// Sets the abort flag on behalf of `rank` unless it is already set: the first reason counts.
    pub(crate) fn set_abort(&self, rank: usize, reason: AbortReason) {
        self.set_abort_flag((rank as u64) << 8 | reason as u64);
    }

    /// Sets the abort flag on behalf of `rank`, whose wait for `late` has timed out, unless it is already set.
    pub(crate) fn set_timed_out(&self, rank: usize, late: usize) {
        self.set_abort_flag((late as u64) << LATE | (rank as u64) << 8 | AbortReason::TimedOut as u64);
    }

    fn set_abort_flag(&self, flag: u64) {
        let _ = self.segment.word(ABORT_FLAG).compare_exchange(0, flag, AcqRel, Relaxed);
        (0..self.ranks()).for_each(|rank| self.wake_waiting(rank));
    }

    pub(crate) fn depart(&self, rank: usize) {
        self.depart_as(rank, DEPARTED_ANYHOW);
    }

    pub(crate) fn depart_aborted(&self, rank: usize) {
        self.depart_as(rank, ABORTED);
    }

    fn depart_as(&self, rank: usize, reason: u64) {
        if !self.has_departed(rank) {
            self.control(rank)[DEPARTED].store(reason, Release);
            self.wake_waiting(rank);
        }
    }

    /// Records that `rank` has departed because it has made all its calls.
    pub(crate) fn leave(&self, rank: usize) {
        self.depart_as(rank, LEFT);
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.control(rank)[DEPARTED].load(Acquire) == LEFT
    }

    pub(crate) fn has_departed(&self, rank: usize) -> bool {
        self.control(rank)[DEPARTED].load(Acquire) != 0
    }

    /// Sets the abort flag if a rank's process has ended. Called periodically during a wait: one of the waiting processes checks
    /// all others once per [`CHECK_INTERVAL`].
    pub(crate) fn check_liveness(&self) {
        if !self.is_one_process() && self.is_check_due() {
            self.check_processes();
        }
    }

    /// Returns `true` if a check is due and this process is the first to start it. A check is due if none has begun for
    /// [`CHECK_INTERVAL`], or if the clock was set.
    fn is_check_due(&self) -> bool {
        let last = self.segment.word(LAST_CHECK);
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let (before, now) = (last.load(Relaxed), now.as_millis() as u64);
        u128::from(now.abs_diff(before)) >= CHECK_INTERVAL.as_millis()
            && last.compare_exchange(before, now, Relaxed, Relaxed).is_ok()
    }

    fn check_processes(&self) {
        let own = u64::from(std::process::id());
        let mut last = None;
        for (rank, process) in self.processes.iter().enumerate() {
            // Ranks are often threads of one process, which needs only one check.
            let is_checked = process.pid == own || last == Some(process);
            last = Some(process);
            // The rank may depart and its process end during the check.
            if !is_checked
                && !self.has_departed(rank)
                && let Some(how) = self.death(rank)
                && !self.has_departed(rank)
            {
                self.set_abort(rank, how);
            }
        }
    }
}

#[cold]
fn aborted(rank: usize) -> Error {
    Error::remote(format!("rank {rank} aborted the communicator"))
}

#[cold]
fn departed(rank: usize) -> Error {
    Error::remote(format!("rank {rank} has finalized or destroyed its communicator"))
}

#[cold]
fn wake(sleepers: &AtomicU64) {
    sleepers.store(0, SeqCst);
    wake_all(sleepers);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

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
    fn one_of_two_waiting_processes_checks_once_an_interval() {
        let current = Process::current().unwrap();
        let other = Process { identity: current.identity + 1, ..current };
        let (state, file) = SharedState::create(&[current, other]).unwrap();
        let views = [SharedState::open(file, 2).unwrap(), state];
        let (began, mut checks) = (Instant::now(), 0);
        while began.elapsed() < 6 * CHECK_INTERVAL {
            checks += views.iter().filter(|view| view.is_check_due()).count();
        }
        assert!((2..=7).contains(&checks), "{checks}");
    }
}

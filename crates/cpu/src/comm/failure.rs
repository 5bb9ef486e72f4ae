//! Failures of a communicator: recording an error, aborting the other ranks, and failing CUDA calls.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use cuda_common::finding::{Failures, Finding};
use libnccl::sys::ncclResult_t;

use crate::comm::communicator::StopReason;
use crate::comm::communicator::{Communicator, RankInfo};
use crate::diag::error::{Error, Progress, Result};
use crate::diag::report;
use crate::diag::settings::FAILURES;
use crate::shm::call_context::CallContext;
use crate::shm::liveness::AbortReason;

impl Communicator {
    /// Ends the operations in progress, on this rank and on the ranks that wait for it, and allows no more operations. The first reason is
    /// kept.
    pub(crate) fn stop(&self, reason: StopReason) -> Result<Progress> {
        if self.finalized.load(Relaxed) {
            return Err(Error::argument("the communicator has been finalized"));
        }
        if self.rank_info.get().is_none() {
            self.check_idle()?;
        }
        if self.stopped.set(reason).is_ok() {
            // The outcome of its operations is not reported any more.
            self.jobs.discard_result();
            self.set_abort(match reason {
                StopReason::Revoked => AbortReason::Revoked,
                StopReason::Shrunk => AbortReason::Shrunk,
            });
            self.recover_cuda();
        } else if reason == StopReason::Revoked {
            let before = self.stopped().unwrap_or(reason).describe();
            return Err(Error::argument(format!("the communicator is already unusable: {before}")));
        }
        Ok(if self.jobs.is_busy() { Progress::Running } else { Progress::Done })
    }

    /// Records that a call failed because of its arguments. Other ranks that wait for the call report it.
    #[cold]
    pub(crate) fn note_failed_call(&self, error: &Error) {
        let is_mistake =
            matches!(error.code, ncclResult_t::ncclInvalidArgument | ncclResult_t::ncclInvalidUsage);
        if let Some(RankInfo { state, rank, .. }) = self.rank_info.get().filter(|_| is_mistake) {
            state.note_failed_call(*rank, &error.text);
        }
    }

    /// Records an operation's error if it leaves the ranks out of sync. The first error is kept.
    pub(crate) fn record_error(&self, error: &Error) {
        if error.code == ncclResult_t::ncclInvalidUsage {
            self.knows_mistake.store(true, Relaxed);
        }
        if matches!(error.code, ncclResult_t::ncclRemoteError | ncclResult_t::ncclInternalError) {
            self.fail(error);
        }
    }

    /// Records the error of an operation on a stream like [`record_error`](Self::record_error), unless the operation stays pending.
    pub(crate) fn record_operation_error(&self, error: &Error) {
        if !self.keeps_pending(error) {
            self.record_error(error);
        }
    }

    /// Returns whether a failed operation on host memory stays pending: a peer caused the failure, and no time limit has passed.
    pub(crate) fn keeps_pending(&self, error: &Error) -> bool {
        *FAILURES == Failures::Wait
            && error.code == ncclResult_t::ncclRemoteError
            && self.rank_info.get().is_some_and(|info| info.state.check_timed_out().is_ok())
    }

    /// Reports a failed operation, and returns once this rank has ended it by an abort, a revocation, a shrink that aborts, or
    /// `ncclCommDestroy`, or once `is_over` returns `true`.
    pub(crate) fn stay_pending(&self, error: &Error, is_over: impl Fn() -> bool) {
        const INTERVAL: Duration = Duration::from_millis(2);
        if self.is_ended() {
            return;
        }
        if !self.is_stalled.swap(true, Relaxed) {
            let consequence = "it stays pending until this rank aborts or destroys the communicator, as LIBNCCL_CPU_FAILURES is wait";
            self.report(
                Finding::FailedOperation,
                &format!("an operation failed: {}; {consequence}", error.text),
            );
        }
        while !self.is_ended() && !is_over() {
            std::thread::sleep(INTERVAL);
        }
    }

    /// Returns whether this rank has ended its operations.
    fn is_ended(&self) -> bool {
        self.is_aborted() || self.stopped().is_some() || self.is_handle_destroyed()
    }

    /// Makes the communicator unusable. The first error is kept.
    pub(crate) fn fail(&self, error: &Error) {
        let _ = self.error.set(error.clone());
    }

    /// Makes the communicator unusable after an operation failed on a stream, where no caller receives its error. Must be called on the
    /// stream's thread. From then on, CUDA calls in the stream's context fail until the program aborts, revokes, or shrinks the
    /// communicator with an abort. After that, operations complete without an error, as on a GPU.
    ///
    /// With `LIBNCCL_CPU_FAILURES=wait`, the communicator stays usable, and this returns once the rank has ended the operation.
    pub(crate) fn fail_on_stream(&self, error: &Error) {
        if *FAILURES == Failures::Wait {
            return self.stay_pending(error, || false);
        }
        let mut fails_cuda = self.fails_cuda();
        if *fails_cuda || self.is_aborted() || self.stopped().is_some() {
            return;
        }
        self.fail(error);
        let consequence = match *FAILURES {
            Failures::Error => {
                "CUDA's calls return error 719 until this communicator is aborted, unless LIBNCCL_CPU_FAILURES is report or wait"
            }
            _ => "CUDA's calls succeed, as LIBNCCL_CPU_FAILURES is report, and its results are not valid",
        };
        let text = format!("an operation on a stream failed: {}; {consequence}", error.text);
        self.report(Finding::FailedOperation, &text);
        if let Some(driver) = self.driver() {
            driver.fail(self.handle().addr() as u64, &self.failure_on_stream(error));
            *fails_cuda = true;
        }
    }

    /// Describes the operation that failed on the calling stream thread, for readers who see only the CUDA error.
    fn failure_on_stream(&self, error: &Error) -> String {
        let operation = self
            .stream_jobs
            .running()
            .map_or_else(|| "an operation in a graph".into(), |name| name.to_string());
        format!(
            "an operation of NCCL failed on this device: {operation}: {}; {}; LIBNCCL_CPU_FAILURES=report keeps such failures out of CUDA's \
             calls",
            error.text,
            self.describe()
        )
    }

    /// Reports a finding of this rank.
    pub(crate) fn report(&self, finding: Finding, text: &str) {
        let Ok(CallContext { rank, .. }) = self.context() else { return };
        report::report(finding, rank, &format!("{text}; {}", self.describe()));
    }

    /// Makes CUDA calls succeed again after [`fail_on_stream`](Self::fail_on_stream). The communicator has been aborted or stopped.
    pub(crate) fn recover_cuda(&self) {
        if std::mem::take(&mut *self.fails_cuda())
            && let Some(driver) = self.driver()
        {
            driver.recover(self.handle().addr() as u64);
        }
    }

    /// Locks the flag that CUDA calls fail because an operation has failed. No operation fails while the lock is held.
    pub(crate) fn fails_cuda(&self) -> MutexGuard<'_, bool> {
        self.fails_cuda.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error that made the communicator unusable.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.error.get()
    }

    /// Sets the abort flag on behalf of this rank.
    pub(crate) fn set_abort(&self, reason: AbortReason) {
        if let Some(RankInfo { state, rank, .. }) = self.rank_info.get() {
            state.set_abort(*rank, reason);
        }
    }
}

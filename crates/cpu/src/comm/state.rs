//! The state of a communicator, and the calls that it permits.
//!
//! A communicator is created without the other ranks (`new`), joins them (`join`), and is torn down by `destroy` or `abort`. In
//! between it can be finalized, stopped (revoked or shrunk), failed, or suspended. Jobs are calls in progress on a nonblocking
//! communicator. A job is exclusive if it creates the communicator or changes it for all later calls.
//!
//! | function | precondition | refused |
//! |---|---|---|
//! | collectives, send and receive, put, signal and wait, `ncclCommRegister`, `ncclCommGetUniqueId` | `check_operable` | unusable (finalized, stopped, aborted, failed), suspended, during an exclusive job |
//! | window registration, `ncclCommSuspend`, `ncclCommGrow` | `check_exclusive` | also during any job |
//! | `ncclCommSplit`, `ncclCommShrink` | `check_parent` | as in the previous row, but allowed if revoked |
//! | `ncclCommResume` | `check_not_failed`, `check_idle` | unusable, during any job |
//! | `ncclCommFinalize`, deregistration, `ncclCommMemStats` | `check_idle` | during any job |
//! | count, rank, device, `ncclWinGetUserPtr` | `check_ready` | during an exclusive job |
//! | `ncclCommRevoke`, `ncclCommShrink` with `NCCL_SHRINK_ABORT` | `stop` | finalized, or already revoked |
//! | `ncclCommGetAsyncError`, `ncclCommDestroy`, `ncclCommAbort` | none | never |
//!
//! On a communicator of CUDA devices, operations are enqueued on streams and run later. Calls that create or change a
//! communicator run on the host nevertheless. They call [`synchronize`](Communicator::synchronize) first, because otherwise a
//! stream and the host could run the same steps concurrently.
//!
//! A failure that leaves the ranks out of sync makes the communicator unusable. On a stream, it also makes CUDA calls fail.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use libnccl::sys::ncclResult_t;

use cuda_common::finding::{Failures, Finding};

use crate::comm::communicator::{Communicator, RankInfo, StopReason};
use crate::diag::error::{Error, Progress, Result};
use crate::diag::report;
use crate::diag::settings::FAILURES;
use crate::shm::call_context::CallContext;
use crate::shm::liveness::AbortReason;
use crate::shm::shared_state::SharedState;
use crate::sync::lock;

impl Communicator {
    /// Checks that no call of this rank is queued in an open group before `what`. Calls on a communicator that has failed or was
    /// stopped do not count.
    ///
    /// # Errors
    /// Returns an error if there are such calls. The first time, they are also reported.
    pub(crate) fn check_group_ended(&self, what: &str) -> Result {
        if self.error.get().is_some() || self.stopped().is_some() {
            return Ok(());
        }
        let Some((calls, is_reported)) = self.queued_calls.describe() else { return Ok(()) };
        let rank = self.rank_info.get().map(|info| info.rank);
        let who = rank.map_or_else(|| "a rank".into(), |rank| format!("rank {rank}"));
        let text = format!("{who} {calls}: ncclGroupEnd is missing before {what}");
        if !is_reported {
            report::report(Finding::UnendedGroup, rank, &format!("{text}; {}", self.describe()));
        }
        Err(Error::usage(text))
    }

    /// Returns the context, unless an exclusive job is in progress.
    pub(crate) fn check_ready(&self) -> Result<CallContext<'_>> {
        if self.jobs.is_exclusive() { Err(busy()) } else { self.context() }
    }

    /// Returns the context, unless an earlier call is still in progress.
    pub(crate) fn check_idle(&self) -> Result<CallContext<'_>> {
        self.check_not_busy()?;
        self.context()
    }

    pub(crate) fn check_not_busy(&self) -> Result {
        if self.jobs.is_busy() { Err(busy()) } else { Ok(()) }
    }

    /// Returns the context if operations can be started. They run after the operations in progress.
    pub(crate) fn check_operable(&self) -> Result<CallContext<'_>> {
        let context = self.check_not_failed()?;
        if self.is_suspended() {
            return Err(Error::usage("the communicator is suspended: call ncclCommResume first"));
        }
        Ok(context)
    }

    /// Returns the context if operations can be started or the communicator is suspended.
    pub(crate) fn check_not_failed(&self) -> Result<CallContext<'_>> {
        self.check_usable()?;
        if self.config.blocking { self.context() } else { self.check_not_failed_beside_jobs() }
    }

    #[inline(never)]
    fn check_not_failed_beside_jobs(&self) -> Result<CallContext<'_>> {
        let context = self.check_ready()?;
        // The peer may have begun this call, or another call, before it aborted. The outcome of this call must not depend on that peer's
        // progress. Calls in progress have already begun and may still succeed.
        check_peers(context.state).map_err(|error| has_failed(&error))?;
        Ok(context)
    }

    /// Returns an error if no operation may run any more.
    #[inline(always)]
    pub(crate) fn check_usable(&self) -> Result {
        if self.finalized.load(Relaxed) {
            return Err(Error::usage("the communicator has been finalized"));
        }
        if let Some(reason) = self.stopped() {
            return Err(Error::usage(format!("the communicator is unusable: {}", reason.describe())));
        }
        if self.is_aborted() {
            return Err(Error::usage("the communicator was aborted"));
        }
        match self.error.get() {
            Some(error) => Err(has_failed(error)),
            None => Ok(()),
        }
    }

    /// Returns the context if a call that must run alone can be started.
    pub(crate) fn check_exclusive(&self) -> Result<CallContext<'_>> {
        self.check_operable()?;
        if self.config.blocking {
            self.synchronize();
        }
        self.check_idle()
    }

    /// Returns the context if another communicator can be created from this one, even if this one was revoked.
    pub(crate) fn check_parent(&self) -> Result<CallContext<'_>> {
        if self.stopped() == Some(StopReason::Revoked) { self.check_idle() } else { self.check_exclusive() }
    }

    pub(crate) fn stopped(&self) -> Option<StopReason> {
        self.stopped.get().copied()
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Relaxed)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    pub(crate) fn is_handle_destroyed(&self) -> bool {
        self.handle_destroyed.load(Relaxed)
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Relaxed)
    }

    /// Returns the asynchronous state. The outcome of the jobs has priority: later actions of a peer do not change it.
    pub(crate) fn async_state(&self) -> Result<Progress> {
        if self.jobs.is_busy() {
            return Ok(Progress::Running);
        }
        let outcome = || self.jobs.result().map(|()| Progress::Done);
        if self.jobs.take_unreported() || self.stopped().is_some() {
            return outcome();
        }
        if self.error.get().is_none()
            && !self.finalized.load(Relaxed)
            && let Some(RankInfo { state, .. }) = self.rank_info.get()
        {
            state.check_liveness();
            // On CUDA devices, a peer that has finished may revoke or shrink first. That ends no operation here.
            let is_error = self.known_driver().is_none() || !state.is_stopped();
            if let Err(error) = check_peers(state)
                && is_error
            {
                self.record_error(&error);
            }
        }
        self.error.get().map_or_else(outcome, |error| Err(error.clone()))
    }

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

    /// Records that a call failed because of invalid arguments or usage. Other ranks that wait for the call report this.
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

    /// Returns whether a failed operation on host memory stays pending: a peer caused the failure, and no wait has timed out.
    pub(crate) fn keeps_pending(&self, error: &Error) -> bool {
        *FAILURES == Failures::Wait
            && error.code == ncclResult_t::ncclRemoteError
            && self.rank_info.get().is_some_and(|info| info.state.check_timed_out().is_ok())
    }

    /// Reports a failed operation. Returns once this rank has ended it or `is_over` returns `true`. A rank ends it by an abort, a
    /// revocation, a shrink that aborts, `ncclCommFinalize` or `ncclCommDestroy`.
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

    fn is_ended(&self) -> bool {
        self.is_aborted()
            || self.stopped().is_some()
            || self.is_handle_destroyed()
            || self.is_finalizing.load(Relaxed)
    }

    /// Makes the communicator unusable. The first error is kept.
    pub(crate) fn fail(&self, error: &Error) {
        let _ = self.error.set(error.clone());
    }

    /// Makes the communicator unusable after an operation failed on a stream, where no caller receives its error. Must be called
    /// on the stream's thread. From then on, CUDA calls in the stream's context fail until the program aborts or revokes the
    /// communicator, or shrinks it with an abort. After that, operations complete without an error, as on a GPU.
    ///
    /// With `LIBNCCL_CPU_FAILURES=wait`, the communicator stays usable, and this returns once the rank has ended the operation.
    pub(crate) fn fail_on_stream(&self, error: &Error) {
        if *FAILURES == Failures::Wait {
            return self.stay_pending(error, || false);
        }
        let mut fails_cuda = lock(&self.fails_cuda);
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

    pub(crate) fn report(&self, finding: Finding, text: &str) {
        let Ok(CallContext { rank, .. }) = self.context() else { return };
        report::report(finding, rank, &format!("{text}; {}", self.describe()));
    }

    /// Makes CUDA calls succeed again after [`fail_on_stream`](Self::fail_on_stream) and an abort or stop of the communicator.
    pub(crate) fn recover_cuda(&self) {
        if std::mem::take(&mut *lock(&self.fails_cuda))
            && let Some(driver) = self.driver()
        {
            driver.recover(self.handle().addr() as u64);
        }
    }

    pub(crate) fn set_abort(&self, reason: AbortReason) {
        if let Some(RankInfo { state, rank, .. }) = self.rank_info.get() {
            state.set_abort(*rank, reason);
        }
    }
}

/// Returns an error if a peer has ended the communicator, so that no operation waits for that peer. With
/// `LIBNCCL_CPU_FAILURES=wait`, returns an error only if a wait has timed out.
fn check_peers(state: &SharedState) -> Result {
    if *FAILURES == Failures::Wait { state.check_timed_out() } else { state.check_abort() }
}

#[cold]
fn busy() -> Error {
    Error::argument(
        "the communicator is still busy with a call that returned ncclInProgress: poll ncclCommGetAsyncError until it \
         returns something else",
    )
}

#[cold]
fn has_failed(error: &Error) -> Error {
    let text = format!("the communicator has failed: {}", error.text);
    Error { text, ..error.clone() }
}

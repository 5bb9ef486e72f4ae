//! The state of a communicator, and the calls that it permits.
//!
//! It is created without the other ranks (`new`), joins them (`join`), and is torn down by `destroy` or `abort`. In between it can be
//! finalized, stopped (revoked or shrunk), failed, or suspended. Jobs are calls in progress on a nonblocking communicator. A job is
//! exclusive if it creates the communicator or changes it for all later calls.
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
//! On a communicator of CUDA devices, operations are enqueued on streams and run later. Calls that create or change a communicator run on
//! the host nevertheless. They call [`synchronize`](Communicator::synchronize) first, because otherwise a stream and the host would run the
//! same steps.

use std::sync::atomic::Ordering::Relaxed;

use cuda_common::finding::{Failures, Finding};

use crate::comm::communicator::{Communicator, RankInfo, StopReason};
use crate::diag::error::{Error, Progress, Result};
use crate::diag::report;
use crate::diag::settings::FAILURES;
use crate::shm::call_context::CallContext;
use crate::shm::shared_state::SharedState;

impl Communicator {
    /// Checks that no call of this rank is queued in an open group before `what`. Calls that have failed, or that the caller has given up,
    /// do not count.
    ///
    /// # Errors
    /// There are such calls. They are reported the first time.
    pub(crate) fn check_group_ended(&self, what: &str) -> Result {
        if self.failure().is_some() || self.stopped().is_some() {
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

    /// Returns an error if an earlier call is still in progress.
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
}

/// Returns an error if a peer ended the communicator. It is detected before an operation waits for that peer. With
/// `LIBNCCL_CPU_FAILURES=wait`, as in NCCL, only a wait fails.
fn check_peers(state: &SharedState) -> Result {
    if *FAILURES == Failures::Wait { state.check_timed_out() } else { state.check_abort() }
}

/// Returns the error of a call that cannot run during an earlier call in progress.
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

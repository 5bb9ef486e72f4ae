//! Teardown of a communicator: finalize, destroy, abort, revoke.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cuda_common::finding::{Failures, Finding};
use libnccl::sys::{NCCL_REVOKE_DEFAULT, ncclComm_t, ncclResult_t};

use super::guard::guard;
use super::point_to_point::report_unreceived;
use crate::coll::call;
use crate::comm::communicator::{Communicator, RankInfo, StopReason};
use crate::comm::{group, handle};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Progress, Result};
use crate::diag::report;
use crate::diag::settings::{FAILURES, STRICT};
use crate::shm::liveness::AbortReason;
use crate::shm::shared_state::SharedState;
use crate::sync::lock;

pub(super) unsafe extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    guard(|| {
        if comm.is_null() {
            return Ok(Progress::Done);
        }
        let communicator = handle::get(comm)?;
        let _entered = communicator.enter()?;
        check_group_ended(&communicator, "ncclCommFinalize")?;
        finalize(&communicator)
    })
}

pub(super) unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    guard(|| {
        if !comm.is_null() {
            let communicator = handle::get(comm)?;
            let _entered = communicator.enter()?;
            handle::remove(comm)?;
            let ended = check_group_ended(&communicator, "ncclCommDestroy");
            communicator.queued_calls.clear();
            let left = ended.and(destroy(&communicator));
            debug::info(Subsystem::Init, || format!("{} - Destroy COMPLETE", communicator.describe()));
            return left;
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    guard(|| {
        if !comm.is_null() {
            let communicator = handle::remove(comm)?;
            abort(&communicator);
            debug::info(Subsystem::Init, || format!("{} - Abort COMPLETE", communicator.describe()));
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn ncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t {
    guard(|| {
        if comm.is_null() {
            return Ok(Progress::Done);
        }
        let communicator = handle::get(comm)?;
        if u32::try_from(revokeFlags) != Ok(NCCL_REVOKE_DEFAULT) {
            return Err(Error::argument(format!("invalid revokeFlags {revokeFlags}: they have to be 0")));
        }
        communicator.stop(StopReason::Revoked)
    })
}

/// Checks that no call on the communicator is queued in an open group. Otherwise fails the group, which must not run on a communicator that
/// has been finalized or destroyed.
fn check_group_ended(communicator: &Communicator, function: &str) -> Result {
    communicator.check_group_ended(function).inspect_err(|error| group::fail_unended(function, error))
}

/// Finalizes the communicator after all operations that were started have completed.
fn finalize(communicator: &Arc<Communicator>) -> Result<Progress> {
    let context = communicator.check_idle()?;
    if let Some(reason) = communicator.stopped() {
        return Err(Error::argument(format!("the communicator is unusable: {}", reason.describe())));
    }
    if communicator.finalized.load(Relaxed) {
        return Err(Error::argument("the communicator has already been finalized"));
    }
    communicator.is_finalizing.store(true, Relaxed);
    if communicator.known_driver().is_none() || communicator.config.blocking {
        communicator.synchronize();
        communicator.finalized.store(true, Relaxed);
        return leave(communicator, context.state, context.rank).map(|()| Progress::Done);
    }
    let own = Arc::clone(communicator);
    communicator.jobs.run(true, move || {
        own.synchronize();
        own.finalized.store(true, Relaxed);
        own.context().and_then(|context| leave(&own, context.state, context.rank))
    })?;
    Ok(Progress::Running)
}

/// Aborts this rank's waits, and other ranks' waits for this rank.
fn abort(communicator: &Communicator) {
    let had_failed = communicator.error.get().is_some() || communicator.is_stalled.load(Relaxed);
    // Not an error: the caller may abort the communicator in order to discard the queued calls.
    let _ = communicator.check_group_ended("ncclCommAbort");
    communicator.queued_calls.clear();
    communicator.aborted.store(true, Relaxed);
    communicator.cancel();
    // No rank waits for a rank whose operations have all run. This rank leaves, and the other ranks can complete their operations.
    let has_ended = communicator.known_driver().is_some()
        && !communicator.jobs.is_busy()
        && communicator.stream_jobs.is_idle();
    match communicator.rank_info.get() {
        Some(RankInfo { state, rank, .. }) if has_ended => state.depart_aborted(*rank),
        _ => communicator.set_abort(AbortReason::Aborted),
    }
    end_jobs(communicator);
    communicator.stream_jobs.wait_not_running();
    let discarded = communicator.stream_jobs.discarded();
    if let Some(first) = discarded.first().filter(|_| !had_failed) {
        let more = match discarded.len() {
            1 => String::new(),
            jobs => format!(", and {} more", jobs - 1),
        };
        let text = "ncclCommAbort discards what was enqueued on streams and has not run";
        communicator.report(Finding::DiscardedOperation, &format!("{text}: {first}{more}"));
    }
    communicator.recover_cuda();
    communicator.stream_jobs.release();
    remove_windows(communicator);
    // Not deferred to the last reference: a thread keeps the communicator that it used last, and ranks that create a child of a failed
    // communicator would wait for this rank.
    if let Some(RankInfo { state, rank, .. }) = communicator.rank_info.get() {
        state.depart_aborted(*rank);
    }
    drop(lock(&communicator.ras).take());
}

/// Destroys the communicator after the operations in progress have ended. Does not wait for ranks that have yet to join it or a
/// child of it: they may never join, and nothing could end the wait any more.
///
/// # Errors
/// Returns the error of [`leave`]. The communicator is destroyed nevertheless.
fn destroy(communicator: &Communicator) -> Result {
    if communicator.jobs.is_busy() {
        communicator.cancel();
    }
    end_jobs(communicator);
    communicator.synchronize();
    communicator.stream_jobs.release();
    if communicator.error.get().is_none() {
        communicator.report_leaks("its communicator was destroyed");
    }
    remove_windows(communicator);
    let left =
        communicator.rank_info.get().map_or(Ok(()), |info| leave(communicator, &info.state, info.rank));
    drop(lock(&communicator.ras).take());
    left
}

/// Marks the rank as departed. Reports unreceived sends and calls that not all ranks made, unless an error explains them.
///
/// # Errors
/// Returns an error if the ranks did not all make the same calls, but only in strict mode or with `LIBNCCL_CPU_FAILURES=error`.
fn leave(communicator: &Communicator, state: &SharedState, rank: usize) -> Result {
    if state.has_departed(rank) {
        return Ok(());
    }
    state.leave(rank);
    if communicator.error.get().is_some() || state.check_abort().is_err() {
        return Ok(());
    }
    report_unreceived(state, rank);
    if communicator.knows_mistake.load(Relaxed) || communicator.is_stalled.load(Relaxed) {
        return Ok(());
    }
    let Some((finding, text)) = call::leaving(state, rank) else { return Ok(()) };
    report::report(finding, rank, &format!("{text}; {}", communicator.describe()));
    if *STRICT || *FAILURES == Failures::Error { Err(Error::usage(text)) } else { Ok(()) }
}

fn end_jobs(communicator: &Communicator) {
    communicator.jobs.wait_idle();
    communicator.jobs.end_thread();
}

/// Closes the windows, because the caller may free their memory now.
fn remove_windows(communicator: &Communicator) {
    if let Ok(context) = communicator.context() {
        communicator.windows.remove_all().iter().for_each(|window| window.close(context.state));
    }
}

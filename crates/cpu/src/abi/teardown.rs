//! The end of a communicator: finalize, destroy, abort, revoke.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;

use libnccl::sys::{NCCL_REVOKE_DEFAULT, ncclComm_t, ncclResult_t};

use super::ffi_guard::guard;
use crate::comm::communicator::{Communicator, StopReason};
use crate::comm::{group, handle};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Progress, Result};

pub(super) unsafe extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    guard(|| {
        if comm.is_null() {
            return Ok(Progress::Done);
        }
        let communicator = handle::get(comm)?;
        let _entered = communicator.enter()?;
        check_group_ended(&communicator, "ncclCommFinalize")?;
        communicator.finalize()
    })
}

pub(super) unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    guard(|| {
        if !comm.is_null() {
            let communicator = handle::get(comm)?;
            let _entered = communicator.enter()?;
            handle::remove(comm)?;
            let ended = check_group_ended(&communicator, "ncclCommDestroy");
            communicator.queued_calls().clear();
            let left = ended.and(communicator.destroy());
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
            communicator.abort();
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

/// Checks that no call of the communicator waits for the end of a group, which fails otherwise: it must not run on a
/// communicator that has been finalized or destroyed.
fn check_group_ended(communicator: &Communicator, function: &str) -> Result {
    communicator.check_group_ended(function).inspect_err(|error| group::fail(function, error))
}

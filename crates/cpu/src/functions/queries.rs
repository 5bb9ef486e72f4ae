//! Queries of the library and of a communicator.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_char, c_int};

use libnccl::sys::{NCCL_VERSION_CODE, ncclComm_t, ncclResult_t};

use super::guard::{Success, guard, write_out};
use crate::comm::handle;
use crate::diag::error::Result;
use crate::diag::{debug, last_error};

pub(super) unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    guard(|| unsafe { write_out(version, NCCL_VERSION_CODE as c_int) })
}

pub(super) unsafe extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    let text = match result {
        ncclResult_t::ncclSuccess => c"no error",
        ncclResult_t::ncclUnhandledCudaError => c"a CUDA call failed",
        ncclResult_t::ncclSystemError => c"a system call failed",
        ncclResult_t::ncclInternalError => c"internal error, a bug in the library",
        ncclResult_t::ncclInvalidArgument => c"invalid argument",
        ncclResult_t::ncclInvalidUsage => c"invalid usage",
        ncclResult_t::ncclRemoteError => c"another rank failed or is gone",
        ncclResult_t::ncclInProgress => c"operation in progress",
        ncclResult_t::ncclTimeout => c"timeout",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

pub(super) unsafe extern "C" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char {
    // NCCL ignores the communicator. Here, the text for a communicator in progress lists the ranks that it waits for. The text has a
    // different address than the last error, so that the caller can distinguish the two.
    let mut wait = None;
    guard(|| {
        if !comm.is_null() {
            wait = handle::with(comm, |comm| Ok(comm.describe_wait()))?;
        }
        Ok(())
    });
    wait.map_or_else(last_error::pointer, |text| last_error::wait_pointer(&text))
}

/// Reads `NCCL_DEBUG` and the related variables again. NCCL's header does not declare this function, so it is not in the function table.
/// NCCL's library exports it, and programs look it up.
pub extern "C" fn ncclResetDebugInit() {
    guard(|| -> Result {
        debug::reset();
        Ok(())
    });
}

pub(super) unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    asyncError: *mut ncclResult_t,
) -> ncclResult_t {
    guard(|| {
        let code = match handle::with(comm, |communicator| Ok(communicator.async_state()))? {
            Ok(progress) => progress.code(),
            Err(error) => {
                // The error of another thread, which is now reported to this thread.
                last_error::record(&error.text);
                error.code
            }
        };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(asyncError, code) }
    })
}

pub(super) unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    guard(|| unsafe { write_out(count, handle::get(comm)?.check_ready()?.state.ranks() as c_int) })
}

pub(super) unsafe extern "C" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    guard(|| {
        let communicator = handle::get(comm)?;
        communicator.check_ready()?;
        // SAFETY: the C declaration's contract.
        unsafe { write_out(device, communicator.device) }
    })
}

pub(super) unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    guard(|| unsafe { write_out(rank, handle::get(comm)?.check_ready()?.rank as c_int) })
}

//! Questions: of the library and of a communicator.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_char, c_int};

use libnccl::sys::{NCCL_VERSION_CODE, ncclComm_t, ncclResult_t};

use super::{Answer, answer, put};
use crate::{handle, last_error};

pub(crate) unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    answer(|| unsafe { put(version, NCCL_VERSION_CODE as c_int) })
}

pub(crate) unsafe extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
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

pub(crate) unsafe extern "C" fn ncclGetLastError(_: ncclComm_t) -> *const c_char {
    last_error::pointer()
}

pub(crate) unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    asyncError: *mut ncclResult_t,
) -> ncclResult_t {
    answer(|| {
        let code = match handle::with(comm, |communicator| Ok(communicator.state()))? {
            Ok(progress) => progress.code(),
            Err(failure) => {
                // Some other thread ran into it, and this one hears of it.
                last_error::keep(&failure.text);
                failure.code
            }
        };
        // SAFETY: the C declaration's contract.
        unsafe { put(asyncError, code) }
    })
}

pub(crate) unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    answer(|| unsafe { put(count, handle::get(comm)?.settled()?.world.ranks() as c_int) })
}

pub(crate) unsafe extern "C" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    answer(|| {
        let communicator = handle::get(comm)?;
        communicator.settled()?;
        // SAFETY: the C declaration's contract.
        unsafe { put(device, communicator.device()) }
    })
}

pub(crate) unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    answer(|| unsafe { put(rank, handle::get(comm)?.settled()?.rank as c_int) })
}

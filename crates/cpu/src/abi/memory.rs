//! Memory.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_void;

use libnccl::sys::ncclResult_t;

use super::{answer, check, put};
use crate::memory;

pub(crate) unsafe extern "C" fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    answer(|| {
        check(ptr, "the pointer")?;
        let memory = memory::allocate(size)?;
        // SAFETY: the C declaration's contract.
        unsafe { put(ptr, memory) }
    })
}

pub(crate) unsafe extern "C" fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t {
    // SAFETY: the C declaration's contract: who frees memory no longer uses it.
    answer(|| unsafe { memory::free(ptr) })
}

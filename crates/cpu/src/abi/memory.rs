//! Memory.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_void;

use libnccl::sys::ncclResult_t;

use super::ffi_guard::{check_not_null, guard, write_out};
use crate::comm::references;
use crate::diag::report;
use crate::shm::mem_alloc;

pub(super) unsafe extern "C" fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    guard(|| {
        check_not_null(ptr, "the pointer")?;
        report::begin();
        let memory = mem_alloc::allocate(size)?;
        // SAFETY: the C declaration's contract.
        unsafe { write_out(ptr, memory) }
    })
}

pub(super) unsafe extern "C" fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t {
    guard(|| {
        let length = mem_alloc::length(ptr).unwrap_or(0);
        references::free("ncclMemFree", ptr.addr()..ptr.addr() + length, || {
            // SAFETY: the C declaration's contract: memory that is freed is no longer used.
            unsafe { mem_alloc::free(ptr) }
        })
    })
}

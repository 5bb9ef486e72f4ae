//! Memory: allocating and freeing it, and the check that no registration or window refers to freed memory.
#![allow(unsafe_code, non_snake_case)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::panic::catch_unwind;

use cuda_common::finding::Finding;
use libnccl::sys::ncclResult_t;

use super::guard::{check_not_null, guard, write_out};
use crate::comm::communicator::Communicator;
use crate::comm::handle;
use crate::diag::error::{Error, Result};
use crate::diag::report;
use crate::diag::settings::STRICT;
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
        free("ncclMemFree", ptr.addr()..ptr.addr() + length, || {
            // SAFETY: the C declaration's contract: the memory is no longer used.
            unsafe { mem_alloc::free(ptr) }
        })
    })
}

thread_local! {
    /// Set while this thread frees memory that has been checked.
    static IS_CHECKED: Cell<bool> = const { Cell::new(false) };
}

/// Frees `memory` by calling `free`. In strict mode, fails instead if a registration or a window refers to the memory.
fn free(function: &str, memory: Range<usize>, free: impl FnOnce() -> Result) -> Result {
    check(function, memory)?;
    IS_CHECKED.set(true);
    let freed = free();
    IS_CHECKED.set(false);
    freed
}

/// Checks memory that CUDA is about to free, as required by [`Driver::on_free`](crate::cuda::Driver::on_free).
///
/// # Safety
/// `function` must be a C string.
pub(super) unsafe extern "C" fn check_free(function: *const c_char, address: u64, length: usize) -> c_int {
    if IS_CHECKED.get() {
        return 0;
    }
    // SAFETY: the caller's contract.
    let function = unsafe { CStr::from_ptr(function) }.to_string_lossy();
    let start = address as usize;
    let checked = catch_unwind(|| check(&function, start..start.saturating_add(length)));
    c_int::from(matches!(checked, Ok(Err(_))))
}

/// Reports registrations and windows that refer to memory that `function` frees.
fn check(function: &str, memory: Range<usize>) -> Result {
    let mut checked = Ok(());
    for communicator in handle::all() {
        let Some(reference) = reference(&communicator, &memory) else { continue };
        let text = format!(
            "{function} frees {} bytes at {:#x} while {reference}, which has to be deregistered before",
            memory.len(),
            memory.start
        );
        communicator.report(Finding::FreeUnderReference, &text);
        if *STRICT && !report::is_ignored(Finding::FreeUnderReference) {
            checked = Err(Error::usage(text));
        }
    }
    checked
}

/// Describes a registration or a window of a communicator that refers to part of the memory.
fn reference(communicator: &Communicator, memory: &Range<usize>) -> Option<String> {
    let is_in = |other: &Range<usize>| other.start < memory.end && memory.start < other.end;
    if let Some(number) = communicator.registrations.find(is_in) {
        return Some(format!("it is registered by ncclCommRegister as {number:#x}"));
    }
    let window = communicator.windows.find(|window| is_in(&window.addresses()))?;
    Some(format!("it is in the window {window:#x}"))
}

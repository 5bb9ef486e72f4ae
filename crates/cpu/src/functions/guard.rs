//! The boundary to C: converts panics and errors to result codes, and checks pointers and ranks.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cuda_common::finding::Finding;
use libnccl::sys::{ncclComm_t, ncclResult_t};

use crate::comm::communicator::Communicator;
use crate::comm::{group, handle};
use crate::diag::error::{self, Error, Progress, Result};
use crate::diag::report;
use crate::shm::call_context::CallContext;
use crate::shm::mapping::first_unmapped;

/// Runs a call and returns its result code. An error becomes the last error. Panics do not propagate.
pub(super) fn guard<T: Into<Progress>>(call: impl FnOnce() -> Result<T>) -> ncclResult_t {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(success)) => return code(success.into()),
        Ok(Err(error)) => error,
        Err(_) => Error::panic(),
    };
    error::set_last(&error.text);
    error.code
}

pub(super) fn code(progress: Progress) -> ncclResult_t {
    match progress {
        Progress::Done => ncclResult_t::ncclSuccess,
        Progress::Running => ncclResult_t::ncclInProgress,
    }
}

/// Runs a call like [`guard`]. An error also fails the group that contains the call.
pub(super) fn guard_in_group<T: Into<Progress>>(
    function: &str,
    call: impl FnOnce() -> Result<T>,
) -> ncclResult_t {
    guard(|| call().inspect_err(|error| group::fail(function, error)))
}

/// Runs a call on a communicator like [`guard`].
pub(super) fn guard_comm<T: Into<Progress>>(
    comm: ncclComm_t,
    call: impl FnOnce(&Arc<Communicator>) -> Result<T>,
) -> ncclResult_t {
    guard(|| call(&handle::get(comm)?))
}

/// Runs a call on a communicator like [`guard_in_group`]. The other ranks make the same call and may wait for this rank.
pub(super) fn guard_of_all<T: Into<Progress>>(
    function: &str,
    comm: ncclComm_t,
    call: impl FnOnce(&Arc<Communicator>) -> Result<T>,
) -> ncclResult_t {
    guard_in_group(function, || {
        let communicator = handle::get(comm)?;
        call(&communicator).inspect_err(|error| communicator.note_failed_call(error))
    })
}

/// Writes a result.
///
/// # Safety
/// `out` must be NULL or writable.
pub(super) unsafe fn write_out<T>(out: *mut T, value: T) -> Result {
    check_not_null(out, "the result")?;
    // SAFETY: the pointer is not NULL, so by the caller's contract it can be written.
    unsafe { out.write(value) };
    Ok(())
}

pub(super) fn check_not_null<T>(pointer: *const T, what: &str) -> Result {
    if pointer.is_null() { Err(Error::argument(format!("the pointer to {what} is NULL"))) } else { Ok(()) }
}

pub(super) fn check_mapped<T>(pointer: *const T, size: usize, what: &str) -> Result {
    match first_unmapped(pointer.addr(), size) {
        None => Ok(()),
        Some(at) => Err(Error::argument(format!(
            "invalid {what} {pointer:p}, {size} bytes: no memory is mapped from byte {at} on"
        ))),
    }
}

pub(super) fn check_rank(number: c_int, ranks: usize, what: &str) -> Result<usize> {
    usize::try_from(number)
        .ok()
        .filter(|rank| *rank < ranks)
        .ok_or_else(|| Error::argument(format!("invalid {what} {number}: it has to be in 0..{ranks}")))
}

/// Reports, in strict mode, bits of `flags` that are not in `known`. NCCL ignores such bits.
pub(super) fn check_flags(context: CallContext<'_>, what: &str, flags: c_int, known: u32) {
    let bits = flags.cast_unsigned();
    if bits & !known != 0 {
        undocumented(context, &format!("{what} are {bits:#x}, and NCCL ignores all but {known:#x}"));
    }
}

/// Reports, in strict mode, that the rank passed an argument that NCCL accepts but does not document.
pub(super) fn undocumented(context: CallContext<'_>, text: &str) {
    report::report_if_strict(Finding::UndocumentedArgument, context.rank, text);
}

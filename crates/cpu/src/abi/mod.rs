//! NCCL's functions as C calls them: arguments are checked and become safe types, failures become result
//! codes.
//!
//! # Safety
//!
//! The contract of every function here is its C declaration's: a pointer that is not NULL points to what the
//! header says, and buffers stay as they are until the call, or the group that it is in, has ended.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libnccl::sys::ncclResult_t;

use crate::failure::{Failure, Progress, Result};
use crate::{group, last_error};

mod collectives;
mod configured;
mod encryption;
mod groups;
mod lifecycle;
mod memory;
mod one_sided;
mod parameters;
mod point_to_point;
mod questions;
mod reductions;
mod suspension;
mod windows;

pub(crate) use collectives::*;
pub(crate) use configured::*;
pub(crate) use encryption::*;
pub(crate) use groups::*;
pub(crate) use lifecycle::*;
pub(crate) use memory::*;
pub(crate) use one_sided::*;
pub(crate) use parameters::*;
pub(crate) use point_to_point::*;
pub(crate) use questions::*;
pub(crate) use reductions::*;
pub(crate) use suspension::*;
pub(crate) use windows::*;

/// Runs a call and turns what became of it into a result code and the last error. No panic gets out.
fn answer<T: Answer>(call: impl FnOnce() -> Result<T>) -> ncclResult_t {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => answer.code(),
        Ok(Err(failure)) => fail(&failure),
        Err(_) => fail(&Failure::panic()),
    }
}

fn fail(failure: &Failure) -> ncclResult_t {
    last_error::set(&failure.text);
    failure.code
}

/// The same for a call whose failure calls the group off that it is in.
fn answer_in_group<T: Answer>(function: &str, call: impl FnOnce() -> Result<T>) -> ncclResult_t {
    answer(|| call().inspect_err(|failure| group::fail(function, failure)))
}

/// What a call without a failure says.
trait Answer {
    fn code(self) -> ncclResult_t;
}

impl Answer for () {
    fn code(self) -> ncclResult_t {
        ncclResult_t::ncclSuccess
    }
}

impl Answer for Progress {
    fn code(self) -> ncclResult_t {
        match self {
            Self::Done => ncclResult_t::ncclSuccess,
            Self::Running => ncclResult_t::ncclInProgress,
        }
    }
}

/// Writes a result.
///
/// # Safety
///
/// `slot` is NULL or can be written.
unsafe fn put<T>(slot: *mut T, value: T) -> Result {
    check(slot, "the result")?;
    // SAFETY: the caller vouches for a pointer that is not NULL.
    unsafe { slot.write(value) };
    Ok(())
}

fn check<T>(pointer: *const T, what: &str) -> Result {
    if pointer.is_null() { Err(Failure::argument(format!("the pointer to {what} is NULL"))) } else { Ok(()) }
}

/// A rank that a caller names.
fn rank_of(number: c_int, ranks: usize, what: &str) -> Result<usize> {
    usize::try_from(number)
        .ok()
        .filter(|rank| *rank < ranks)
        .ok_or_else(|| Failure::argument(format!("invalid {what} {number}: it has to be in 0..{ranks}")))
}

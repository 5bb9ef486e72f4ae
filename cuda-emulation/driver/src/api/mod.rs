//! The C functions: they check arguments, and convert handles and addresses to the driver's types.

#![allow(unsafe_code)]

/// Reads an enumeration as a number, because the program may have stored an undeclared value.
macro_rules! number {
    ($place:expr) => {
        // SAFETY: the caller's contract: it can be read; an enumeration is as large as the number.
        unsafe { (&raw const $place).cast::<c_uint>().read() }
    };
}

/// Exports functions of CUDA's driver. `fn cuX(...) = value;` returns the value of an expression.
macro_rules! api {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(= $value:expr;)? $($body:block)?)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe)]
            unsafe extern "C" fn $name($($argument: $type),*) -> cudarc::driver::sys::CUresult {
                let run = move || -> $crate::error::Result<()> {
                    // SAFETY: the caller keeps the function's contract: pointers are null or valid for what CUDA documents.
                    // `put` checks for null what the bodies do not.
                    unsafe { $($value)? $($body)? }
                };
                $crate::api::answer(run())
            }
        )*
    };
}

mod context;
mod copy;
mod device;
pub mod extension;
mod graph;
mod interprocess;
mod library;
mod memory;
mod nvidias_runtime;
mod stream;
mod virtual_memory;

use std::ffi::c_char;
use std::thread;

use cuda_common::report_unsupported;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUdeviceptr, CUresult, CUresult as Status};

use crate::allocation::Kind;
use crate::current::Current;
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::handle::ContextId;
use crate::operation::Place;
use crate::scheduler::Point;
use crate::state::State;

fn answer(result: Result<()>) -> CUresult {
    result.err().unwrap_or(CUDA_SUCCESS)
}

/// Converts the result of a C function to which another one forwards.
fn result(answer: CUresult) -> Result<()> {
    ensure(answer == CUDA_SUCCESS, answer)
}

fn refuse<T>(what: &'static str) -> Result<T> {
    report_unsupported(what);
    Err(CUDA_ERROR_NOT_SUPPORTED)
}

fn not_supported(function: &'static str) -> Status {
    answer(refuse(function))
}

// The unsupported functions of functions.txt.
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

/// Stores a result.
///
/// # Safety
/// `out` must be null or valid for a write.
unsafe fn put<T>(out: *mut T, value: T) -> Result<()> {
    ensure(!out.is_null(), CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: the caller promises that it is valid.
    unsafe { out.write(value) };
    Ok(())
}

/// Stores a C string, truncated to `length` bytes.
///
/// # Safety
/// `out` must be null or valid for `length` writes.
unsafe fn put_text(out: *mut c_char, length: usize, text: &[u8]) -> Result<()> {
    let room = length.checked_sub(1).filter(|_| !out.is_null()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let kept = text.len().min(room);
    // SAFETY: the caller promises that there is room.
    unsafe {
        out.copy_from_nonoverlapping(text.as_ptr().cast(), kept);
        out.add(kept).write(0);
    }
    Ok(())
}

/// Stores a result unless `out` is null.
///
/// # Safety
/// `out` must be null or valid for a write.
unsafe fn put_if_wanted<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller promises that it is valid.
        unsafe { out.write(value) };
    }
}

/// Checks whether a point is complete. If it is, orders the host after it.
fn query(find: impl FnOnce(&mut State) -> Result<(ContextId, Point)>) -> Result<()> {
    let mut state = Driver::get()?.enter();
    let (_, point) = find(&mut state)?;
    if !point.is_complete() {
        drop(state);
        // A thread that polls leaves the lock to those that do the work.
        thread::yield_now();
        return Err(CUDA_ERROR_NOT_READY);
    }
    state.scheduler.advance_host(&point.clock());
    Ok(())
}

/// Waits for a point. Returns the error of its context.
fn synchronize(find: impl FnOnce(&mut State) -> Result<(ContextId, Point)>) -> Result<()> {
    let driver = Driver::get()?;
    Current::check_is_no_function()?;
    let mut state = driver.enter();
    let (of, point) = find(&mut state)?;
    driver.synchronize(state, &point).check(of)
}

/// The memory that a function accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    /// Memory known to CUDA.
    Device,
    /// Memory accessible to the host.
    Host,
    Unified,
}

fn place(state: &State, address: CUdeviceptr, length: usize, space: Space) -> Result<Place> {
    match state.allocations.part(address, length)? {
        Some(part) if space == Space::Host && part.allocation.kind == Kind::Device => {
            Err(CUDA_ERROR_INVALID_VALUE)
        }
        Some(part) => Ok(Place::Known(part)),
        None if length > 0 && (space == Space::Device || address == 0) => Err(CUDA_ERROR_INVALID_VALUE),
        None => Ok(Place::Host(address as usize)),
    }
}

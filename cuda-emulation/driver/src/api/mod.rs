//! The C functions: they check arguments, and turn handles and addresses into the driver's types.

#![allow(unsafe_code)]

/// Reads a number that CUDA declares as an enumeration: the program may have stored another.
macro_rules! number {
    ($place:expr) => {
        // SAFETY: the caller's contract: it can be read; an enumeration is as large as the number.
        unsafe { (&raw const $place).cast::<c_uint>().read() }
    };
}

/// Exports functions of CUDA's driver.
macro_rules! api {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe)]
            unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
                let run = move || -> $crate::error::Result<()> {
                    // SAFETY: the caller keeps the function's contract: pointers are null or valid for what CUDA documents.
                    // `put` checks for null what the bodies do not.
                    unsafe { $body }
                };
                $crate::api::answer(run())
            }
        )*
    };
}

mod context;
mod copy;
mod device;
mod event;
mod export_table;
mod fill;
mod graph;
mod interprocess;
mod library;
mod memory;
mod nvidias_runtime;
mod pointer;
mod pool;
mod procedures;
mod stream;
mod unsupported;
mod user_object;
mod virtual_memory;

use std::thread;

use cudarc::driver::sys::{CUdeviceptr, CUresult};

pub(crate) use self::device::describe;
pub(crate) use self::memory::allocate_shared;
use crate::context::Current;
use crate::driver::{Driver, State};
use crate::error::Result;
use crate::handle::ContextId;
use crate::operation::Place;
use crate::scheduler::Point;

/// Turns a result into CUDA's.
pub(crate) fn answer(result: Result<()>) -> CUresult {
    result.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Turns the answer of a function that another one stands for into a result.
fn result(answer: CUresult) -> Result<()> {
    if answer == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(answer) }
}

/// Stores an answer where the program wants it.
///
/// # Safety
///
/// `out` is null, which is an error, or valid for a write.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller promises that it is valid.
    unsafe { out.write(value) };
    Ok(())
}

/// Returns whether a point is passed, which the host then knows, or the error of a context.
fn query(find: impl FnOnce(&mut State) -> Result<(ContextId, Point)>) -> Result<()> {
    let mut state = Driver::get()?.enter();
    let (_, point) = find(&mut state)?;
    if !point.is_complete() {
        drop(state);
        // Whoever asks again and again leaves the lock to those that do the work.
        thread::yield_now();
        return Err(CUresult::CUDA_ERROR_NOT_READY);
    }
    state.scheduler.tell_host(&point.clock());
    Ok(())
}

/// Waits until a point is passed, and returns the error that its context then has.
fn synchronize(find: impl FnOnce(&mut State) -> Result<(ContextId, Point)>) -> Result<()> {
    let driver = Driver::get()?;
    Current::check_is_no_function()?;
    let mut state = driver.enter();
    let (of, point) = find(&mut state)?;
    driver.synchronize(state, &point).check(of)
}

/// The memory that a function takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    /// Memory that CUDA knows.
    Device,
    /// Memory that the program can touch.
    Host,
    /// Any: the address tells.
    Unified,
}

/// Finds the memory behind addresses that a program passes.
fn place(state: &State, address: CUdeviceptr, length: usize, space: Space) -> Result<Place> {
    use crate::allocation::Kind;
    match state.allocations.part(address, length)? {
        Some(part) if space == Space::Host && part.allocation.kind == Kind::Device => {
            Err(CUresult::CUDA_ERROR_INVALID_VALUE)
        }
        Some(part) => Ok(Place::Known(part)),
        None if length == 0 => Ok(Place::Host(address as usize)),
        None if space == Space::Device || address == 0 => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        None => Ok(Place::Host(address as usize)),
    }
}

//! The functions beyond CUDA's: [`Interface`], and a function that callers look up by name.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use cuda_common::{AccessKind, Device, FreeCheck, Interface, Memory, MemoryKind};
use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};

use super::memory::{add_check, allocate_shared};
use super::{answer, device, put, put_text};
use crate::access::Access;
use crate::allocation::{Kind, Part};
use crate::callback::{Callback, Function};
use crate::current::Current;
use crate::driver::Driver;
use crate::error::{Result, from_code};
use crate::handle::StreamId;
use crate::operation::Work;
use crate::scheduler::{Executor, Point};
use crate::state::{Failure, Request};

/// The functions below; see [`Interface`].
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static libnccl_cuda_interface: Interface = Interface {
    version: Interface::VERSION,
    describe,
    resolve,
    enqueue,
    launched,
    fail,
    recover,
    on_free,
    alloc_shared,
};

fn code(function: impl FnOnce() -> Result<()>) -> c_uint {
    answer(function()) as c_uint
}

/// # Safety
/// `out` must be null or valid for a write.
unsafe extern "C" fn describe(index: c_int, out: *mut Device) -> c_uint {
    // SAFETY: the caller promises that it is valid.
    code(|| unsafe { put(out, device::describe(index)?) })
}

/// # Safety
/// `out` must be null or valid for a write.
unsafe extern "C" fn resolve(address: CUdeviceptr, length: usize, out: *mut Memory) -> c_uint {
    code(|| {
        let part = Driver::get()?.enter().allocations.part(address, length)?;
        let memory = match part {
            Some(Part { allocation, offset, .. }) => Memory {
                kind: match allocation.kind {
                    Kind::Device => MemoryKind::Device,
                    Kind::Pinned | Kind::Registered => MemoryKind::Pinned,
                    Kind::Managed => MemoryKind::Managed,
                },
                device: allocation.device as i32,
                alias: ptr::with_exposed_provenance_mut(allocation.alias(offset)),
                id: allocation.id,
            },
            None => Memory {
                kind: MemoryKind::Host,
                device: -1,
                alias: ptr::with_exposed_provenance_mut(address as usize),
                id: 0,
            },
        };
        // SAFETY: the caller promises that it is valid.
        unsafe { put(out, memory) }
    })
}

/// # Safety
/// `accesses` must be valid for `count` reads, `label` must be null or a C string, and `run` and `release` must be callable with
/// `data` on any thread.
unsafe extern "C" fn enqueue(
    stream: *mut c_void,
    accesses: *const cuda_common::Access,
    count: usize,
    label: *const c_char,
    run: Option<Function>,
    release: Option<Function>,
    data: *mut c_void,
) -> c_uint {
    code(|| {
        let driver = Driver::get()?;
        let run =
            run.filter(|_| count == 0 || !accesses.is_null()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let label = if label.is_null() {
            Cow::Borrowed("an operation without a name")
        } else {
            // SAFETY: the caller promises that it is a C string.
            Cow::Owned(unsafe { CStr::from_ptr(label) }.to_string_lossy().into_owned())
        };
        let mut state = driver.enter();
        let stream = state.stream(stream.addr())?;
        let mut used = Vec::new();
        for index in 0..count {
            // SAFETY: the caller promises that `count` accesses can be read.
            let access = unsafe { accesses.add(index).read() };
            let part = state.allocations.part(access.address, access.length)?;
            let part = part.or_else(|| state.allocations.part_of_alias(access.address, access.length));
            used.extend(part.map(|part| match access.kind {
                AccessKind::Put => Access::put(&part, access.length),
                kind => Access::new(&part, access.length, kind == AccessKind::Write),
            }));
        }
        let uses = used.iter().flat_map(Access::allocations).map(Arc::clone).collect();
        // SAFETY: the caller promises that they may be called.
        let callback = unsafe {
            let release = release.map(|release| Box::new(move || release(data)) as Box<dyn FnOnce()>);
            Callback::new(move || run(data), release)
        };
        let work = Work::Call { callback: Arc::clone(&callback), uses };
        let request = Request { label, accesses: used, executor: Executor::Peers, work };
        let enqueued = driver.enqueue(&mut state, stream, &Point::default(), request);
        // It may be complete already, and `release` may call CUDA.
        drop(state);
        enqueued.map(|_| ()).inspect_err(|_| callback.refuse())
    })
}

extern "C" fn launched(stream: *mut c_void) -> c_uint {
    code(|| {
        let driver = Driver::get()?;
        if !driver.blocks_launches() {
            return Ok(());
        }
        let mut state = driver.enter();
        let stream = state.stream(stream.addr())?;
        if state.is_captured(stream)? {
            return Ok(());
        }
        let context = state.context_of(stream)?;
        let point = state.scheduler.point_of_stream(stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        driver.synchronize(state, &point).check(context)
    })
}

/// # Safety
/// `reason` must be null or a C string.
unsafe extern "C" fn fail(number: u64, error: c_uint, reason: *const c_char) -> c_uint {
    code(|| {
        let driver = Driver::get()?;
        if driver.config.failures_stay {
            // SAFETY: the caller promises that it is null or a C string.
            let reason = unsafe { reason.as_ref().map(|reason| CStr::from_ptr(reason)) };
            let failure = Failure { error: from_code(error), reason: reason.unwrap_or_default().to_owned() };
            let mut state = driver.enter();
            state.context(Current::require()?)?.failures.entry(number).or_insert(failure);
        }
        Ok(())
    })
}

/// Stores why calls with a stream fail: the reason passed to [`Interface::fail`] in the stream's context, as a C string truncated
/// to `length` bytes; empty if there is no reason. The crate libnccl, which depends on no part of the emulation, finds this
/// function by its name.
///
/// # Safety
/// `out` must be null or valid for `length` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnccl_cuda_failure(stream: CUstream, out: *mut c_char, length: usize) -> CUresult {
    let find = || {
        let state = Driver::get()?.enter();
        // The special handles are default streams of the current context, in which calls fail.
        let context = match stream.addr() {
            0..=2 => Current::require()?,
            handle => state.context_of(StreamId(handle as u64))?,
        };
        let context = state.contexts.get(&context).ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        let failure = context.failures.values().next().filter(|_| context.error.is_none());
        let text = failure.map_or(c"", |failure| &failure.reason).to_bytes();
        // SAFETY: the caller promises that there is room.
        unsafe { put_text(out, length, text) }
    };
    answer(find())
}

extern "C" fn recover(number: u64) -> c_uint {
    code(|| {
        let mut state = Driver::get()?.enter();
        state.contexts.values_mut().for_each(|context| {
            context.failures.remove(&number);
        });
        Ok(())
    })
}

/// # Safety
/// `check` must be callable on any thread, until the process ends.
unsafe extern "C" fn on_free(check: Option<FreeCheck>) -> c_uint {
    code(|| check.map(add_check).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE))
}

/// # Safety
/// `memfd` must be an open memory file; `out` must be null or valid for a write.
unsafe extern "C" fn alloc_shared(memfd: c_int, length: usize, out: *mut CUdeviceptr) -> c_uint {
    if memfd < 0 || out.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE as c_uint;
    }
    // SAFETY: the caller promises that it is open.
    let file = unsafe { BorrowedFd::borrow_raw(memfd) };
    // SAFETY: the caller promises that it is valid.
    code(|| unsafe { put(out, allocate_shared(file, length)?) })
}

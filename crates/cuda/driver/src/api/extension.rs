//! Functions beyond CUDA's, by which the CPU backend of NCCL enqueues its operations, and the stand-in for NVML
//! learns of the devices.
//!
//! Whoever finds `libnccl_cuda_version` in a `libcuda.so.1` that is in the process already knows that it is this one.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};

use super::memory::allocate_shared;
use super::{answer, device, put};
use crate::access::Access;
use crate::allocation::{Kind, Part};
use crate::callback::{Callback, Function};
use crate::config::{self, Config};
use crate::current::Current;
use crate::driver::Driver;
use crate::error::{Result, from_code};
use crate::handle::StreamId;
use crate::operation::Work;
use crate::references::{self, FreeCheck};
use crate::scheduler::{Executor, Point};
use crate::state::{Failure, Request};

/// Memory that no function of CUDA allocated or registered.
pub const KIND_HOST: i32 = 0;
/// Memory of a device, which programs cannot touch.
pub const KIND_DEVICE: i32 = 1;
/// Host memory that CUDA allocated or registered.
pub const KIND_PINNED: i32 = 2;
/// Memory that devices and the host share.
pub const KIND_MANAGED: i32 = 3;

/// It reads.
pub const ACCESS_READ: i32 = 0;
/// It may write.
pub const ACCESS_WRITE: i32 = 1;
/// It may write, and tell a peer.
pub const ACCESS_PUT: i32 = 2;

/// The memory behind an address.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct libnccl_cuda_memory {
    /// One of the `KIND_` constants.
    pub kind: i32,
    /// The device of the allocation, or -1.
    pub device: i32,
    /// The address at which this process can read and write the bytes.
    pub alias: *mut c_void,
    /// The allocation's number, never used twice; 0 for memory unknown to CUDA.
    pub id: u64,
}

/// Memory that an operation reads or writes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct libnccl_cuda_access {
    /// The first byte, where programs see it or at its alias.
    pub address: CUdeviceptr,
    /// The number of bytes.
    pub length: usize,
    /// One of the `ACCESS_` constants.
    pub writes: i32,
}

/// A device.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct libnccl_cuda_device {
    /// Its name, a C string.
    pub name: [u8; 64],
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The number of its PCI bus, in domain 0; it is device 0 there.
    pub bus: u32,
    /// Its compute capability.
    pub capability: [i32; 2],
    /// Its memory in bytes.
    pub total: u64,
    /// The bytes that this process can still allocate of it.
    pub free: u64,
}

/// Returns the version of these functions.
#[unsafe(no_mangle)]
pub extern "C" fn libnccl_cuda_version() -> u32 {
    4
}

/// Describes a device, also before `cuInit` and in a forked child, and initialises nothing: a program that only looks around
/// can still fork.
///
/// A number that no device has is `CUDA_ERROR_INVALID_DEVICE`.
///
/// # Safety
///
/// `out` is null, which is an error, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnccl_cuda_describe(device: c_int, out: *mut libnccl_cuda_device) -> CUresult {
    // SAFETY: the caller promises that it is valid.
    answer(describe(device).and_then(|description| unsafe { put(out, description) }))
}

/// Finds the memory behind a range of addresses, which must lie in one allocation.
///
/// Device memory that was freed lately is `CUDA_ERROR_INVALID_VALUE`.
///
/// # Safety
///
/// `out` is null, which is an error, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnccl_cuda_resolve(
    address: CUdeviceptr,
    length: usize,
    out: *mut libnccl_cuda_memory,
) -> CUresult {
    let resolve = || {
        let part = Driver::get()?.enter().allocations.part(address, length)?;
        let memory = match part {
            Some(Part { allocation, offset, .. }) => libnccl_cuda_memory {
                kind: match allocation.kind {
                    Kind::Device => KIND_DEVICE,
                    Kind::Pinned | Kind::Registered => KIND_PINNED,
                    Kind::Managed => KIND_MANAGED,
                },
                device: allocation.device as i32,
                alias: ptr::with_exposed_provenance_mut(allocation.alias(offset)),
                id: allocation.id,
            },
            None => libnccl_cuda_memory {
                kind: KIND_HOST,
                device: -1,
                alias: ptr::with_exposed_provenance_mut(address as usize),
                id: 0,
            },
        };
        // SAFETY: the caller promises that it is valid.
        unsafe { put(out, memory) }
    };
    answer(resolve())
}

/// Enqueues an operation, which calls `run(data)` when everything before it on the stream is done; at last,
/// `release(data)` is called.
///
/// `run` may block; other streams go on meanwhile. It is called once for every operation that was accepted, even if its
/// stream or context is destroyed, and the memory that it accesses lives until it returns. On a stream that is captured,
/// it is called for each launch of the graph. `release` is called once, after the last call of `run`: when the operation
/// is complete, or its graph and all that was made of it are gone. If the operation is not accepted, neither is called.
///
/// The operation may wait for such operations of other streams and processes, and counts as coming, at its end, after all
/// that came before those that had begun. Memory that CUDA does not know is left out of races. A label is the functions that
/// were called, `function(arguments) + function(arguments)`, and after a comma what else is to be said; races of the same functions
/// are reported once.
///
/// # Safety
///
/// `accesses` is valid for `count` reads, `label` is null or a C string, and `run` and `release` may be called with
/// `data` on any thread, as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnccl_cuda_enqueue(
    stream: CUstream,
    accesses: *const libnccl_cuda_access,
    count: usize,
    label: *const c_char,
    run: Option<Function>,
    release: Option<Function>,
    data: *mut c_void,
) -> CUresult {
    let enqueue = || {
        let driver = Driver::get()?;
        let run =
            run.filter(|_| count == 0 || !accesses.is_null()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let label = if label.is_null() {
            Cow::Borrowed("libnccl_cuda_enqueue")
        } else {
            // SAFETY: the caller promises that it is a C string.
            Cow::Owned(unsafe { CStr::from_ptr(label) }.to_string_lossy().into_owned())
        };
        let mut state = driver.enter();
        let stream = state.stream(stream.addr())?;
        let mut used = Vec::new();
        for index in 0..count {
            // SAFETY: the caller promises that `count` of them can be read.
            let access = unsafe { accesses.add(index).read() };
            let part = state.allocations.part(access.address, access.length)?;
            let part = part.or_else(|| state.allocations.part_of_alias(access.address, access.length));
            used.extend(part.map(|part| match access.writes {
                ACCESS_PUT => Access::put(&part, access.length),
                writes => Access::new(&part, access.length, writes != ACCESS_READ),
            }));
        }
        let uses = used.iter().flat_map(Access::allocations).map(Arc::clone).collect();
        // SAFETY: the caller promises that they may be called.
        let callback = unsafe { Callback::new(run, data, release) };
        let work = Work::Call { callback: Arc::clone(&callback), uses };
        let request = Request { label, accesses: used, executor: Executor::Peers, work };
        let enqueued = driver.enqueue(&mut state, stream, &Point::default(), request);
        // It may be complete already, and `release` may call CUDA.
        drop(state);
        enqueued.map(|_| ()).inspect_err(|_| callback.refuse())
    };
    answer(enqueue())
}

/// Waits for a stream if `CUDA_LAUNCH_BLOCKING=1` is set: called once all operations of a call of NCCL are enqueued, because those of one
/// rank may wait for those of another. Does nothing if the stream is captured.
#[unsafe(no_mangle)]
pub extern "C" fn libnccl_cuda_launched(stream: CUstream) -> CUresult {
    let wait = || {
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
    };
    answer(wait())
}

/// Makes all calls in the context of the operation that this thread executes, or else in the current one, return an error, until
/// `libnccl_cuda_recover` is called with the same number. Does nothing if the program wants failures to be reported alone.
///
/// A code that CUDA does not have is `CUDA_ERROR_UNKNOWN`. The reason names the operation, for `libnccl_cuda_failure`.
///
/// # Safety
///
/// `reason` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnccl_cuda_fail(number: u64, error: c_uint, reason: *const c_char) -> CUresult {
    let fail = || {
        let driver = Driver::get()?;
        if driver.config.failures_stay {
            // SAFETY: the caller promises that it is null or a C string.
            let reason = unsafe { reason.as_ref().map(|reason| CStr::from_ptr(reason)) };
            let failure = Failure { error: from_code(error), reason: reason.unwrap_or_default().to_owned() };
            let mut state = driver.enter();
            state.context(Current::require()?)?.failures.entry(number).or_insert(failure);
        }
        Ok(())
    };
    answer(fail())
}

/// Stores why calls with a stream fail: the reason of an operation of NCCL that failed in the stream's context, as a C string, of which
/// what has no room is cut. Without such a failure the text is empty.
///
/// # Safety
///
/// `out` is null, which is an error, or valid for `length` writes.
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
        let room =
            length.checked_sub(1).filter(|_| !out.is_null()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let kept = text.len().min(room);
        // SAFETY: the caller promises that there is room.
        unsafe {
            out.copy_from_nonoverlapping(text.as_ptr().cast(), kept);
            out.add(kept).write(0);
        }
        Ok(())
    };
    answer(find())
}

/// Takes back the errors that were set with a number, in all contexts.
#[unsafe(no_mangle)]
pub extern "C" fn libnccl_cuda_recover(number: u64) -> CUresult {
    let recover = || {
        let mut state = Driver::get()?.enter();
        state.contexts.values_mut().for_each(|context| {
            context.failures.remove(&number);
        });
        Ok(())
    };
    answer(recover())
}

/// Calls `check` before memory of CUDA is freed, unregistered or unmapped, with the name of the function that the program called,
/// and the memory. If it does not return 0, the memory stays, and the program's call is `CUDA_ERROR_INVALID_VALUE`.
///
/// # Safety
///
/// `check` can be called by any thread, until the process ends. It takes a C string, an address and a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnccl_cuda_on_free(check: Option<FreeCheck>) -> CUresult {
    answer(check.map(references::on_free).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE))
}

/// Makes device memory of the current context out of a memory file; `cuMemFree` frees it.
///
/// # Safety
///
/// `memfd` is an open memory file of at least `length` bytes, which stays as long; `out` is null, which is an error, or
/// valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnccl_cuda_alloc_shared(
    memfd: c_int,
    length: usize,
    out: *mut CUdeviceptr,
) -> CUresult {
    if memfd < 0 || out.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller promises that it is open.
    let file = unsafe { BorrowedFd::borrow_raw(memfd) };
    // SAFETY: the caller promises that it is valid.
    answer(allocate_shared(file, length).and_then(|address| unsafe { put(out, address) }))
}

/// Describes a physical device, visible or not. Needs no `cuInit`.
fn describe(index: c_int) -> Result<libnccl_cuda_device> {
    let driver = Driver::get();
    let config = driver.map_or_else(|_| Config::from_env(), |driver| Ok(driver.config))?;
    let index = usize::try_from(index).ok().filter(|&index| index < config.devices);
    let index = index.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    let total = config.device_memory;
    let visible = driver.ok().and_then(|driver| Some((driver, driver.visible(index)?)));
    let free = visible.map_or(total, |(driver, device)| driver.lock().allocations.free(device));
    let mut name = [0; 64];
    name[..device::NAME.len()].copy_from_slice(device::NAME.as_bytes());
    Ok(libnccl_cuda_device {
        name,
        uuid: config::uuid(index),
        bus: device::bus(index),
        capability: device::CAPABILITY,
        total: total as u64,
        free: free as u64,
    })
}

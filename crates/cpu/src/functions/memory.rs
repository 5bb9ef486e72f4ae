//! Memory: allocating and freeing it, registering a buffer on one rank, and registering a window on all ranks. Also the check
//! that no registration or window refers to freed memory.
#![allow(unsafe_code, non_snake_case)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::panic::catch_unwind;
use std::ptr;
use std::sync::Arc;

use cuda_common::finding::Finding;
use libnccl::sys::{
    NCCL_WIN_CFT_COUNTED, NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_GIN_ONLY, NCCL_WIN_REQUIRED_ALIGNMENT,
    NCCL_WIN_STRICT_ORDERING, ncclComm_t, ncclResult_t, ncclWindow_t,
};

use super::guard::{check_flags, check_mapped, check_not_null, guard, guard_comm, guard_of_all, write_out};
use crate::coll::call::{CallHeader, ControlCall};
use crate::coll::operation::Operation;
use crate::comm::communicator::Communicator;
use crate::comm::init::OutParam;
use crate::comm::registry::Registry;
use crate::comm::window::{Window, WindowPart};
use crate::comm::{group, handle};
use crate::diag::error::{Error, Result};
use crate::diag::report;
use crate::diag::settings::STRICT;
use crate::shm::buffer::ReadBuf;
use crate::shm::call_context::{CallContext, RemoteBuffer};
use crate::shm::mem_alloc;
use crate::shm::window_memory::WindowMemory;

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
        check("ncclMemFree", ptr.addr()..ptr.addr() + length)?;
        IS_CHECKED.set(true);
        // SAFETY: the C declaration's contract: the memory is no longer used.
        let freed = unsafe { mem_alloc::free(ptr) };
        IS_CHECKED.set(false);
        freed
    })
}

thread_local! {
    /// Set while this thread frees memory that has been checked.
    static IS_CHECKED: Cell<bool> = const { Cell::new(false) };
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

/// Reports registrations and windows that refer to memory that `function` frees. In strict mode, fails if there are any.
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

pub(super) unsafe extern "C" fn ncclCommRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ncclResult_t {
    guard_comm(comm, |communicator| {
        communicator.check_operable()?;
        check_not_null(handle, "the handle")?;
        check_not_null(buff, "the buffer")?;
        check_end(buff, size)?;
        if let Some(driver) = communicator.driver() {
            driver.resolve("the buffer to register", buff.addr(), size)?;
            driver.on_free(check_free);
        } else {
            check_mapped(buff, size, "buff")?;
        }
        let number = communicator.registrations.add(buff.addr()..buff.addr() + size);
        // SAFETY: the C declaration's contract.
        unsafe { write_out(handle, ptr::without_provenance_mut(number)) }
    })
}

pub(super) unsafe extern "C" fn ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t {
    guard_comm(comm, |communicator| {
        communicator.check_idle()?;
        // With `NCCL_LOCAL_REGISTER=0`, NCCL skips the registration and returns a NULL handle.
        if handle.is_null() {
            return Ok(());
        }
        let removed = communicator.registrations.remove(handle.addr());
        removed.map(drop).map_err(|Error { text, .. }| Error::usage(text))
    })
}

pub(super) unsafe extern "C" fn ncclCommWindowRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    win: *mut ncclWindow_t,
    winFlags: c_int,
) -> ncclResult_t {
    guard_of_all("ncclCommWindowRegister", comm, |communicator| {
        let context = communicator.check_exclusive()?;
        check_not_null(win, "the window")?;
        check_not_null(buff, "the buffer")?;
        if size == 0 {
            return Err(Error::argument("invalid buffer size 0: it has to be at least 1"));
        }
        check_end(buff, size)?;
        let alignment = NCCL_WIN_REQUIRED_ALIGNMENT as usize;
        if !buff.addr().is_multiple_of(alignment) {
            return Err(Error::argument(format!(
                "invalid window address {buff:p}: it has to be a multiple of {alignment}"
            )));
        }
        let flags = flags(context, winFlags)?;
        let place: *const u8 = match communicator.driver() {
            Some(driver) => {
                driver.on_free(check_free);
                ptr::with_exposed_provenance(driver.resolve("the window's buffer", buff.addr(), size)?)
            }
            None => {
                check_mapped(buff, size, "buff")?;
                buff.cast()
            }
        };
        let memory = Arc::new(WindowMemory::new(place, size));
        // SAFETY: the C declaration's contract: the memory stays valid until the window is deregistered.
        let buffer = unsafe { ReadBuf::of_caller(place, size) };
        let buffer = RemoteBuffer::new(buffer, !context.state.is_one_process());
        let register = RegisterWindow {
            windows: Arc::clone(&communicator.windows),
            part: WindowPart { buffer, start: buff.addr(), length: size, flags },
            memory,
            // SAFETY: the C declaration's contract: the pointer can be written until the work has ended.
            out: unsafe { OutParam::new(win) },
        };
        // As in NCCL, this succeeds while a nonblocking communicator is still registering the window.
        group::run_on_host(communicator, context, register)?;
        Ok(())
    })
}

pub(super) unsafe extern "C" fn ncclCommWindowDeregister(
    comm: ncclComm_t,
    win: ncclWindow_t,
) -> ncclResult_t {
    guard_comm(comm, |communicator| {
        communicator.synchronize();
        let context = communicator.check_idle()?;
        let _entered = communicator.enter()?;
        // A registration that created no window returned NULL.
        if !win.is_null() {
            communicator.windows.remove(win.addr())?.close(context.state);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn ncclWinGetUserPtr(
    comm: ncclComm_t,
    win: ncclWindow_t,
    outUserPtr: *mut *mut c_void,
) -> ncclResult_t {
    guard_comm(comm, |communicator| {
        communicator.check_ready()?;
        check_not_null(outUserPtr, "the address")?;
        let window = communicator.windows.get(win.addr())?;
        // SAFETY: the C declaration's contract.
        unsafe { write_out(outUserPtr, ptr::with_exposed_provenance_mut(window.start())) }
    })
}

fn check_end(buffer: *const c_void, size: usize) -> Result {
    if buffer.addr().checked_add(size).is_none() {
        return Err(Error::argument(format!("invalid buffer size {size} at {buffer:p}")));
    }
    Ok(())
}

/// Checks the flags of a window, and returns those that NCCL uses.
fn flags(context: CallContext<'_>, flags: c_int) -> Result<u32> {
    const RESTRICTING: u32 = NCCL_WIN_GIN_ONLY | NCCL_WIN_CFT_COUNTED;
    const KNOWN: u32 = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING | RESTRICTING;
    check_flags(context, "ncclCommWindowRegister: winFlags", flags, KNOWN);
    let bits = flags.cast_unsigned() & KNOWN;
    if bits & NCCL_WIN_COLL_SYMMETRIC != 0 && bits & RESTRICTING != 0 {
        return Err(Error::argument(format!(
            "invalid winFlags {bits:#x}: NCCL_WIN_COLL_SYMMETRIC cannot be combined with NCCL_WIN_GIN_ONLY or \
             NCCL_WIN_CFT_COUNTED"
        )));
    }
    if bits & NCCL_WIN_CFT_COUNTED != 0 {
        return Err(Error::argument(
            "NCCL_WIN_CFT_COUNTED needs counted writes, which there are not: see cftCountedSupport of \
             ncclCommProperties_t",
        ));
    }
    Ok(bits)
}

struct RegisterWindow {
    windows: Arc<Registry<Arc<Window>>>,
    part: WindowPart,
    /// Lists the memory as a window's memory from the call on.
    memory: Arc<WindowMemory>,
    out: OutParam<ncclWindow_t>,
}

impl Operation for RegisterWindow {
    fn header(&self) -> CallHeader {
        CallHeader::Control { call: ControlCall::RegisterWindow, length: 0 }
    }

    async fn run(&self, context: CallContext<'_>) -> Result {
        let window = Window::register(context, self.part, Arc::clone(&self.memory)).await?;
        let handle = |window| ptr::without_provenance_mut(self.windows.add(Arc::new(window)));
        self.out.write(window.map_or(ptr::null_mut(), handle));
        Ok(())
    }
}

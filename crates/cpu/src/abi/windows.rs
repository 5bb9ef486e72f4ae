//! Registering buffers: by one rank, and by all as a window.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_void};
use std::ptr;

use libnccl::sys::{
    NCCL_WIN_CFT_COUNTED, NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_GIN_ONLY, NCCL_WIN_REQUIRED_ALIGNMENT,
    NCCL_WIN_STRICT_ORDERING, ncclComm_t, ncclResult_t, ncclWindow_t,
};

use super::{answer, answer_in_group, check, put};
use crate::communicator::Membership;
use crate::failure::{Failure, Result};
use crate::group::{self, Lane};
use crate::handle;
use crate::reach::Whereabouts;
use crate::slot::Slot;
use crate::window::{Part, Window};

pub(crate) unsafe extern "C" fn ncclCommRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ncclResult_t {
    answer(|| {
        let communicator = handle::get(comm)?;
        communicator.ready()?;
        check(handle, "the handle")?;
        check_buffer(buff, size)?;
        let number = communicator.registrations().add(());
        // SAFETY: the C declaration's contract.
        unsafe { put(handle, ptr::without_provenance_mut(number)) }
    })
}

pub(crate) unsafe extern "C" fn ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t {
    answer(|| {
        let communicator = handle::get(comm)?;
        communicator.settled()?;
        communicator.registrations().remove(handle.addr())
    })
}

pub(crate) unsafe extern "C" fn ncclCommWindowRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    win: *mut ncclWindow_t,
    winFlags: c_int,
) -> ncclResult_t {
    answer_in_group("ncclCommWindowRegister", || {
        let communicator = handle::get(comm)?;
        let Membership { world, .. } = communicator.ready()?;
        check(win, "the window")?;
        check_buffer(buff, size)?;
        let alignment = NCCL_WIN_REQUIRED_ALIGNMENT as usize;
        if !buff.addr().is_multiple_of(alignment) {
            return Err(Failure::argument(format!(
                "a window cannot begin at {buff:p}: it has to be a multiple of {alignment}"
            )));
        }
        let flags = flags(winFlags)?;
        let place = Whereabouts::new(buff.cast(), size, !world.is_one_process());
        let part = Part { place, length: size, flags };
        let start = buff.addr();
        // SAFETY: the C declaration's contract: the slot can be written until the work has ended.
        let slot = unsafe { Slot::new(win) };
        group::run(&communicator, Lane::Collective, 0, async move |own| {
            let window = Window::register(own.seat()?, start, part).await?;
            slot.write(
                window
                    .map_or(ptr::null_mut(), |window| ptr::without_provenance_mut(own.windows().add(window))),
            );
            Ok(())
        })
    })
}

pub(crate) unsafe extern "C" fn ncclCommWindowDeregister(
    comm: ncclComm_t,
    win: ncclWindow_t,
) -> ncclResult_t {
    answer(|| {
        let communicator = handle::get(comm)?;
        communicator.settled()?;
        // Who was given no window gives none back.
        if win.is_null() { Ok(()) } else { communicator.windows().remove(win.addr()) }
    })
}

pub(crate) unsafe extern "C" fn ncclWinGetUserPtr(
    comm: ncclComm_t,
    win: ncclWindow_t,
    outUserPtr: *mut *mut c_void,
) -> ncclResult_t {
    answer(|| {
        let communicator = handle::get(comm)?;
        communicator.settled()?;
        check(outUserPtr, "the address")?;
        let window = communicator.windows().get(win.addr())?;
        // SAFETY: the C declaration's contract.
        unsafe { put(outUserPtr, ptr::with_exposed_provenance_mut(window.start())) }
    })
}

fn check_buffer(buffer: *const c_void, size: usize) -> Result {
    check(buffer, "the buffer")?;
    if size == 0 || buffer.addr().checked_add(size).is_none() {
        return Err(Failure::argument(format!("no buffer has {size} bytes at {buffer:p}")));
    }
    Ok(())
}

fn flags(flags: c_int) -> Result<u32> {
    const RESTRICTING: u32 = NCCL_WIN_GIN_ONLY | NCCL_WIN_CFT_COUNTED;
    const KNOWN: u32 = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING | RESTRICTING;
    let bits = flags.cast_unsigned();
    if bits & !KNOWN != 0 {
        return Err(Failure::argument(format!("invalid winFlags {bits:#x}: there are only {KNOWN:#x}")));
    }
    if bits & NCCL_WIN_COLL_SYMMETRIC != 0 && bits & RESTRICTING != 0 {
        return Err(Failure::argument(format!(
            "invalid winFlags {bits:#x}: NCCL_WIN_COLL_SYMMETRIC does not go together with NCCL_WIN_GIN_ONLY or \
             NCCL_WIN_CFT_COUNTED"
        )));
    }
    Ok(bits)
}

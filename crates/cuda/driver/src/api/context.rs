//! Contexts.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys::{CUcontext, CUdevice, CUlimit, CUresult};

use super::{answer, put, synchronize};
use crate::context::Current;
use crate::driver::Driver;
use crate::error::Result;
use crate::handle::ContextId;

/// The range of stream priorities, from the least to the greatest.
pub(super) const PRIORITIES: [c_int; 2] = [0, -5];

/// The context of a handle, or the current one.
fn id_or_current(context: CUcontext) -> Result<ContextId> {
    if context.is_null() { Current::require() } else { Ok(ContextId::of(context)) }
}

unsafe fn create(out: *mut CUcontext, flags: c_uint, device: CUdevice) -> CUresult {
    let create = || {
        let driver = Driver::get()?;
        let device = driver.device(device)?;
        let mut state = driver.enter();
        let id = ContextId(state.next_handle());
        // SAFETY: the callers say that it is valid for a write.
        unsafe { put(out, id.pointer())? };
        state.open_context(id, device, flags);
        Current::push(id)
    };
    answer(create())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxCreate_v2(out: *mut CUcontext, flags: c_uint, device: CUdevice) -> CUresult {
    // SAFETY: CUDA's contract: valid for a write.
    unsafe { create(out, flags, device) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxCreate_v3(
    out: *mut CUcontext,
    _affinities: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    if count != 0 {
        return CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    // SAFETY: CUDA's contract: valid for a write.
    unsafe { create(out, flags, device) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxCreate_v4(
    out: *mut CUcontext,
    parameters: *mut c_void,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    if !parameters.is_null() {
        super::unsupported::say("cuCtxCreate_v4 with parameters");
        return CUresult::CUDA_ERROR_NOT_SUPPORTED;
    }
    // SAFETY: CUDA's contract: valid for a write.
    unsafe { create(out, flags, device) }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: CUcontext) -> CUresult {
    let destroy = || {
        let driver = Driver::get()?;
        Current::check_is_no_function()?;
        let state = driver.enter();
        let id = ContextId::of(context);
        let is_primary = state.devices.iter().any(|device| device.primary == id);
        if is_primary || !state.contexts.contains_key(&id) {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        drop(driver.destroy_context(state, id, |_| true));
        if Current::get()? == Some(id) {
            Current::pop()?;
        }
        Ok(())
    };
    answer(destroy())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    let set = || {
        let driver = Driver::get()?;
        if context.is_null() {
            return Current::set(None);
        }
        driver.enter().context(ContextId::of(context))?;
        Current::set(Some(ContextId::of(context)))
    };
    answer(set())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(out: *mut CUcontext) -> CUresult {
    let get = || {
        Driver::get()?;
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(out, Current::get()?.map_or(ptr::null_mut(), ContextId::pointer)) }
    };
    answer(get())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> CUresult {
    let push = || {
        Driver::get()?.enter().context(ContextId::of(context))?;
        Current::push(ContextId::of(context))
    };
    answer(push())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(out: *mut CUcontext) -> CUresult {
    let pop = || {
        Driver::get()?;
        let popped = Current::pop()?;
        if !out.is_null() {
            // SAFETY: CUDA's contract: null or valid for a write.
            unsafe { put(out, popped.pointer())? };
        }
        Ok(())
    };
    answer(pop())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(out: *mut CUdevice) -> CUresult {
    // SAFETY: the same contract; null stands for the current context.
    unsafe { cuCtxGetDevice_v2(out, ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice_v2(out: *mut CUdevice, context: CUcontext) -> CUresult {
    let get = || {
        let device = Driver::get()?.enter().context(id_or_current(context)?)?.device;
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(out, device as CUdevice) }
    };
    answer(get())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetFlags(out: *mut c_uint) -> CUresult {
    let get = || {
        let flags = Driver::get()?.enter().context(Current::require()?)?.flags;
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(out, flags) }
    };
    answer(get())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(flags: c_uint) -> CUresult {
    let set = || {
        Driver::get()?.enter().context(Current::require()?)?.flags = flags;
        Ok(())
    };
    answer(set())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetId(context: CUcontext, out: *mut u64) -> CUresult {
    let get = || {
        let id = id_or_current(context)?;
        Driver::get()?.enter().context(id)?;
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(out, id.0) }
    };
    answer(get())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetApiVersion(context: CUcontext, out: *mut c_uint) -> CUresult {
    let get = || {
        Driver::get()?.enter().context(id_or_current(context)?)?;
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(out, super::library::VERSION as c_uint) }
    };
    answer(get())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> CUresult {
    cuCtxSynchronize_v2(ptr::null_mut())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize_v2(context: CUcontext) -> CUresult {
    synchronize(|state| {
        let context = id_or_current(context)?;
        state.check(context)?;
        state.check_context_not_captured(context)?;
        Ok((context, state.scheduler.point_of_context(context)))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> CUresult {
    let get = || {
        Driver::get()?.enter().current()?;
        for (out, value) in [least, greatest].into_iter().zip(PRIORITIES) {
            if !out.is_null() {
                // SAFETY: CUDA's contract: null or valid for a write.
                unsafe { put(out, value)? };
            }
        }
        Ok(())
    };
    answer(get())
}

/// Limits, which concern kernels alone, and hold nothing back here: the values that a device begins with.
fn limit(code: c_uint) -> Result<usize> {
    const MIB: usize = 1 << 20;
    match code {
        c if c == CUlimit::CU_LIMIT_STACK_SIZE as c_uint => Ok(1024),
        c if c == CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE as c_uint => Ok(MIB),
        c if c == CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE as c_uint => Ok(8 * MIB),
        c if c < CUlimit::CU_LIMIT_MAX as c_uint => Err(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetLimit(out: *mut usize, code: c_uint) -> CUresult {
    let get = || {
        Driver::get()?.enter().current()?;
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(out, limit(code)?) }
    };
    answer(get())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(code: c_uint, _value: usize) -> CUresult {
    answer(Driver::get().and_then(|driver| driver.enter().current()).and_then(|_| limit(code)).map(|_| ()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCacheConfig(out: *mut c_uint) -> CUresult {
    // SAFETY: CUDA's contract: valid for a write. There is no cache to configure: no preference.
    answer(Driver::get().and_then(|driver| driver.enter().current()).and_then(|_| unsafe { put(out, 0) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCacheConfig(config: c_uint) -> CUresult {
    const LAST: c_uint = 3;
    let current = Driver::get().and_then(|driver| driver.enter().current());
    let known = if config <= LAST { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
    answer(current.and(known))
}

/// The current context, a peer, and whether both are of one device.
fn peer(context: CUcontext) -> Result<(&'static Driver, ContextId, ContextId, bool)> {
    let driver = Driver::get()?;
    let mut state = driver.enter();
    let (own, peer) = (state.current()?, ContextId::of(context));
    let devices = (state.context(own)?.device, state.context(peer)?.device);
    Ok((driver, own, peer, devices.0 == devices.1))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(context: CUcontext, flags: c_uint) -> CUresult {
    let enable = || {
        let (driver, own, peer, is_itself) = peer(context)?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if is_itself {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let is_new = driver.enter().context(own)?.peers.insert(peer);
        is_new.then_some(()).ok_or(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    };
    answer(enable())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDisablePeerAccess(context: CUcontext) -> CUresult {
    let disable = || {
        let (driver, own, peer, _) = peer(context)?;
        let was_enabled = driver.enter().context(own)?.peers.remove(&peer);
        was_enabled.then_some(()).ok_or(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
    };
    answer(disable())
}

//! Contexts.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUcontext, CUdevice, CUlimit};

use super::{put, put_if_wanted, refuse, result, synchronize};
use crate::current::Current;
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::handle::ContextId;

/// The stream priorities, from least to greatest.
pub(super) const PRIORITIES: [c_int; 2] = [0, -5];

fn id_or_current(context: CUcontext) -> Result<ContextId> {
    if context.is_null() { Current::require() } else { Ok(ContextId::of(context)) }
}

unsafe fn create(out: *mut CUcontext, flags: c_uint, device: CUdevice) -> Result<()> {
    let driver = Driver::get()?;
    let device = driver.device(device)?;
    let mut state = driver.enter();
    let id = ContextId(state.next_handle());
    // SAFETY: the callers say that it is valid for a write.
    unsafe { put(out, id.pointer())? };
    state.open_context(id, device, flags);
    Current::push(id);
    Ok(())
}

/// The initial limits of a device. They only affect kernels.
fn limit(code: c_uint) -> Result<usize> {
    const MIB: usize = 1 << 20;
    match code {
        c if c == CUlimit::CU_LIMIT_STACK_SIZE as c_uint => Ok(1024),
        c if c == CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE as c_uint => Ok(MIB),
        c if c == CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE as c_uint => Ok(8 * MIB),
        c if c < CUlimit::CU_LIMIT_MAX as c_uint => Err(CUDA_ERROR_UNSUPPORTED_LIMIT),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Returns the driver, the current context, the peer, and whether both have the same device.
fn peer(context: CUcontext) -> Result<(&'static Driver, ContextId, ContextId, bool)> {
    let (driver, mut state) = Driver::entered()?;
    let (own, peer) = (state.current()?, ContextId::of(context));
    let devices = (state.context(own)?.device, state.context(peer)?.device);
    Ok((driver, own, peer, devices.0 == devices.1))
}

api! {
    fn cuCtxCreate_v2(out: *mut CUcontext, flags: c_uint, device: CUdevice) = create(out, flags, device);

    fn cuCtxCreate_v3(
        out: *mut CUcontext, _affinities: *mut c_void, count: c_int, flags: c_uint, device: CUdevice,
    ) {
        ensure(count == 0, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)?;
        create(out, flags, device)
    }

    fn cuCtxCreate_v4(out: *mut CUcontext, parameters: *mut c_void, flags: c_uint, device: CUdevice) {
        if !parameters.is_null() {
            return refuse("cuCtxCreate_v4 with parameters");
        }
        create(out, flags, device)
    }

    fn cuCtxDestroy_v2(context: CUcontext) {
        let driver = Driver::get()?;
        Current::check_is_no_function()?;
        let state = driver.enter();
        let id = ContextId::of(context);
        let is_primary = state.devices.iter().any(|device| device.primary == id);
        ensure(!is_primary && state.contexts.contains_key(&id), CUDA_ERROR_INVALID_CONTEXT)?;
        drop(driver.destroy_context(state, id, |_| true));
        if Current::get() == Some(id) {
            Current::pop()?;
        }
        Ok(())
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        let driver = Driver::get()?;
        if context.is_null() {
            Current::set(None);
            return Ok(());
        }
        driver.enter().context(ContextId::of(context))?;
        Current::set(Some(ContextId::of(context)));
        Ok(())
    }

    fn cuCtxGetCurrent(out: *mut CUcontext) {
        Driver::get()?;
        put(out, Current::get().map_or(ptr::null_mut(), ContextId::pointer))
    }

    fn cuCtxPushCurrent_v2(context: CUcontext) {
        Driver::get()?.enter().context(ContextId::of(context))?;
        Current::push(ContextId::of(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: *mut CUcontext) {
        Driver::get()?;
        put_if_wanted(out, Current::pop()?.pointer());
        Ok(())
    }

    fn cuCtxGetDevice(out: *mut CUdevice) = result(cuCtxGetDevice_v2(out, ptr::null_mut()));

    fn cuCtxGetDevice_v2(out: *mut CUdevice, context: CUcontext)
        = put(out, Driver::get()?.enter().context(id_or_current(context)?)?.device as CUdevice);

    fn cuCtxGetFlags(out: *mut c_uint) = put(out, Driver::get()?.enter().context(Current::require()?)?.flags);

    fn cuCtxSetFlags(flags: c_uint) {
        Driver::get()?.enter().context(Current::require()?)?.flags = flags;
        Ok(())
    }

    fn cuCtxGetId(context: CUcontext, out: *mut u64) {
        let id = id_or_current(context)?;
        Driver::get()?.enter().context(id)?;
        put(out, id.0)
    }

    fn cuCtxGetApiVersion(context: CUcontext, out: *mut c_uint) {
        Driver::get()?.enter().context(id_or_current(context)?)?;
        put(out, super::library::VERSION as c_uint)
    }

    fn cuCtxSynchronize() = result(cuCtxSynchronize_v2(ptr::null_mut()));

    fn cuCtxSynchronize_v2(context: CUcontext) {
        synchronize(|state| {
            let context = id_or_current(context)?;
            state.check(context)?;
            state.check_context_not_captured(context)?;
            Ok((context, state.scheduler.point_of_context(context)))
        })
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        Driver::get()?.enter().current()?;
        put_if_wanted(least, PRIORITIES[0]);
        put_if_wanted(greatest, PRIORITIES[1]);
        Ok(())
    }

    fn cuCtxGetLimit(out: *mut usize, code: c_uint) {
        Driver::get()?.enter().current()?;
        put(out, limit(code)?)
    }

    fn cuCtxSetLimit(code: c_uint, _value: usize) {
        Driver::get()?.enter().current()?;
        limit(code).map(|_| ())
    }

    fn cuCtxGetCacheConfig(out: *mut c_uint) {
        Driver::get()?.enter().current()?;
        // There is no cache to configure: no preference.
        put(out, 0)
    }

    fn cuCtxSetCacheConfig(config: c_uint) {
        const LAST: c_uint = 3;
        Driver::get()?.enter().current()?;
        ensure(config <= LAST, CUDA_ERROR_INVALID_VALUE)
    }

    fn cuCtxEnablePeerAccess(context: CUcontext, flags: c_uint) {
        let (driver, own, peer, is_itself) = peer(context)?;
        ensure(flags == 0, CUDA_ERROR_INVALID_VALUE)?;
        ensure(!is_itself, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)?;
        let is_new = driver.enter().context(own)?.peers.insert(peer);
        ensure(is_new, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    }

    fn cuCtxDisablePeerAccess(context: CUcontext) {
        let (driver, own, peer, _) = peer(context)?;
        let was_enabled = driver.enter().context(own)?.peers.remove(&peer);
        ensure(was_enabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
    }
}

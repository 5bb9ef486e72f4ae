//! Memory of devices, pinned and managed memory.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUmemLocation, CUresult, CUstream};

use super::{put, result, unsupported};
use crate::allocation::{Allocation, Kind, Part};
use crate::context::Current;
use crate::device::host_memory;
use crate::driver::{Driver, Request, State};
use crate::error::Result;
use crate::handle::{PoolId, StreamId};
use crate::mapping::Mapping;
use crate::operation::Work;
use crate::race::Access;
use crate::scheduler::Point;

/// Allocates memory of the current context and stores its address.
///
/// # Safety
///
/// `out` is null, which is an error, or valid for a write.
unsafe fn allocate(out: *mut CUdeviceptr, kind: Kind, flags: c_uint, length: usize) -> Result<()> {
    if length == 0 || out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let driver = Driver::get()?;
    let mut state = driver.enter();
    let context = state.current()?;
    state.check_may_wait()?;
    let device = state.context(context)?.device;
    if kind != Kind::Pinned {
        state.allocations.check_room(device, length)?;
    } else if length > host_memory() {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    let mapping = if kind == Kind::Device { Mapping::device(length)? } else { Mapping::host(length)? };
    let allocation = state.allocate(context, kind, None, flags, length, mapping)?;
    // SAFETY: the caller promises that it is valid.
    unsafe { put(out, allocation.address) }
}

/// All of an allocation.
fn whole(allocation: &Arc<Allocation>) -> Part {
    Part::of(allocation, 0)
}

/// Frees or unregisters host memory.
fn free_host(function: &'static CStr, pointer: *mut c_void, kind: Kind, error: CUresult) -> Result<()> {
    let driver = Driver::get()?;
    driver.check_free(function, pointer.addr() as u64)?;
    let function = function.to_str().unwrap_or_default();
    let mut state = driver.enter();
    let address = pointer.addr() as u64;
    let allocation = state.allocations.at(address).filter(|allocation| allocation.kind == kind);
    let Some(allocation) = allocation.map(Arc::clone) else {
        let is_inside = state.allocations.containing(address).is_some_and(|around| around.kind == kind);
        return Err(if is_inside { CUresult::CUDA_ERROR_INVALID_VALUE } else { error });
    };
    state.check_may_wait()?;
    state.check_host(driver.config, function, &whole(&allocation), allocation.length);
    // The program may use the memory for something else from now on, so that nothing else may still use it.
    state = driver.synchronize_all(state);
    let freed = state.allocations.remove(address).ok_or(error)?;
    state.forget_allocation(&freed);
    state.check_current()
}

/// Checks a range of managed memory.
fn managed(address: CUdeviceptr, length: usize) -> Result<()> {
    let part = Driver::get()?.enter().allocations.part(address, length)?;
    let is_managed = part.is_some_and(|part| part.allocation.kind == Kind::Managed);
    is_managed.then_some(()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn prefetch(function: &'static str, address: CUdeviceptr, length: usize, stream: CUstream) -> Result<()> {
    managed(address, length)?;
    let driver = Driver::get()?;
    let mut state = driver.enter();
    let stream = state.stream(stream.addr())?;
    let request = Request::new(function, Vec::new(), Work::Nothing);
    driver.enqueue(&mut state, stream, &Point::default(), request).map(|_| ())
}

/// Checks that a stream is not captured, for functions that graphs have no nodes for here.
fn check_is_no_node(state: &mut State, stream: StreamId) -> Result<()> {
    if state.captures.of(stream).is_some() {
        unsupported::say("allocations and frees on a stream that is captured");
    }
    state.check_not_captured(stream)
}

/// Allocates memory in the order of a stream.
///
/// # Safety
///
/// `out` is null, which is an error, or valid for a write.
pub(super) unsafe fn allocate_async(
    function: &'static str,
    out: *mut CUdeviceptr,
    length: usize,
    pool: Option<PoolId>,
    stream: CUstream,
) -> Result<()> {
    let driver = Driver::get()?;
    let mut state = driver.enter();
    let stream = state.stream(stream.addr())?;
    if out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if length == 0 {
        // SAFETY: the caller promises that it is valid.
        return unsafe { put(out, 0) };
    }
    let context = state.context_of(stream)?;
    state.check(context)?;
    check_is_no_node(&mut state, stream)?;
    let device = state.context(context)?.device;
    let pool = pool.unwrap_or(state.devices[device].pool);
    let device = state.pools.get(&pool).map_or(device, |pool| pool.device);
    state.allocations.check_room(device, length)?;
    let mapping = Mapping::device(length)?;
    let allocation = state.allocate(context, Kind::Device, Some(pool), 0, length, mapping)?;
    let accesses = vec![Access::new(&whole(&allocation), length, true)];
    let request = Request::new(function, accesses, Work::Nothing);
    if let Err(error) = driver.enqueue(&mut state, stream, &Point::default(), request) {
        state.allocations.remove(allocation.address);
        state.forget_allocation(&allocation);
        return Err(error);
    }
    // SAFETY: the caller promises that it is valid.
    unsafe { put(out, allocation.address) }
}

/// Makes device memory of the current context out of a memory file.
pub(crate) fn allocate_shared(file: std::os::fd::BorrowedFd<'_>, length: usize) -> Result<CUdeviceptr> {
    if length == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mapping = Mapping::shared(file, length)?;
    let mut state = Driver::get()?.enter();
    let context = Current::require()?;
    state.check(context)?;
    let device = state.context(context)?.device;
    state.allocations.check_room(device, length)?;
    state.allocate(context, Kind::Device, None, 0, length, mapping).map(|allocation| allocation.address)
}

api! {
    fn cuMemAlloc_v2(out: *mut CUdeviceptr, length: usize) {
        allocate(out, Kind::Device, 0, length)
    }

    fn cuMemAllocPitch_v2(
        out: *mut CUdeviceptr,
        pitch: *mut usize,
        width: usize,
        height: usize,
        element: c_uint,
    ) {
        const PITCH: usize = 512;
        let is_size = [4, 8, 16].contains(&element);
        let rounded = width.checked_next_multiple_of(PITCH).filter(|_| is_size);
        let length = rounded.and_then(|rounded| rounded.checked_mul(height));
        let (Some(rounded), Some(length)) = (rounded, length) else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        put(pitch, rounded)?;
        allocate(out, Kind::Device, 0, length)
    }

    fn cuMemAllocManaged(out: *mut CUdeviceptr, length: usize, flags: c_uint) {
        const GLOBAL: c_uint = 1;
        const HOST: c_uint = 2;
        if flags != GLOBAL && flags != HOST {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        allocate(out, Kind::Managed, flags, length)
    }

    fn cuMemHostAlloc(out: *mut *mut c_void, length: usize, flags: c_uint) {
        const ALL_FLAGS: c_uint = 7;
        let mut address = 0;
        if out.is_null() || flags > ALL_FLAGS {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if length == 0 {
            Driver::get()?;
            return put(out, ptr::null_mut());
        }
        // SAFETY: a variable can be written.
        unsafe { allocate(&raw mut address, Kind::Pinned, flags, length)? };
        put(out, ptr::with_exposed_provenance_mut(address as usize))
    }

    fn cuMemAllocHost_v2(out: *mut *mut c_void, length: usize) {
        result(cuMemHostAlloc(out, length, 0))
    }

    fn cuMemFree_v2(address: CUdeviceptr) {
        let driver = Driver::get()?;
        driver.check_free(c"cuMemFree_v2", address)?;
        let mut state = driver.enter();
        if address == 0 {
            return state.check_current();
        }
        let allocation = state.allocations.at(address).map(Arc::clone);
        let is_freed_so = |allocation: &Arc<Allocation>| {
            let is_on_device = matches!(allocation.kind, Kind::Device | Kind::Managed);
            is_on_device && allocation.backing.is_none() && !allocation.is_imported
        };
        let allocation = allocation.filter(is_freed_so);
        let Some(allocation) = allocation else {
            return state.check_current().and(Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        };
        state.check_may_wait()?;
        // Memory of a pool is freed without waiting: the program has to know that its use is over.
        if allocation.pool.is_none() {
            let point = state.scheduler.point_of_context(allocation.context);
            state = driver.synchronize(state, &point);
        }
        state.check_host(driver.config, "cuMemFree_v2", &whole(&allocation), allocation.length);
        let freed = state.allocations.remove(address);
        // Another thread may have freed it meanwhile.
        let freed = freed.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        state.forget_allocation(&freed);
        state.check(freed.context)
    }

    fn cuMemFreeHost(pointer: *mut c_void) {
        if pointer.is_null() {
            return Driver::get()?.enter().check_current();
        }
        free_host(c"cuMemFreeHost", pointer, Kind::Pinned, CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMemHostUnregister(pointer: *mut c_void) {
        let error = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        free_host(c"cuMemHostUnregister", pointer, Kind::Registered, error)
    }

    fn cuMemHostRegister_v2(pointer: *mut c_void, length: usize, flags: c_uint) {
        const ALL_FLAGS: c_uint = 15;
        let driver = Driver::get()?;
        let mut state = driver.enter();
        let context = state.current()?;
        let address = pointer.expose_provenance() as u64;
        if address == 0 || length == 0 || flags > ALL_FLAGS || address.checked_add(length as u64).is_none() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.check_may_wait()?;
        if state.allocations.overlaps(address, length) {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        let id = state.allocations.next_id();
        let device = state.context(context)?.device;
        state.allocations.insert(Allocation {
            id,
            kind: Kind::Registered,
            device,
            context,
            backing: None,
            is_imported: false,
            pool: None,
            flags,
            address,
            length,
            mapping: None,
        });
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(out: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint) {
        let state = Driver::get()?.enter();
        let address = pointer.addr() as u64;
        let allocation = state.allocations.containing(address);
        let is_host = |kind| matches!(kind, Kind::Pinned | Kind::Registered);
        let is_known = flags == 0 && allocation.is_some_and(|allocation| is_host(allocation.kind));
        if !is_known {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // Devices see host memory where the host does.
        put(out, address)
    }

    fn cuMemHostGetFlags(out: *mut c_uint, pointer: *mut c_void) {
        let state = Driver::get()?.enter();
        let allocation = state.allocations.containing(pointer.addr() as u64);
        let allocation = allocation.filter(|allocation| allocation.kind == Kind::Pinned);
        put(out, allocation.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?.flags)
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let mut state = Driver::get()?.enter();
        let context = state.current()?;
        let device = state.context(context)?.device;
        let (rest, all) = (state.allocations.free(device), state.allocations.total);
        for (out, value) in [(free, rest), (total, all)] {
            if !out.is_null() {
                put(out, value)?;
            }
        }
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) {
        let state = Driver::get()?.enter();
        state.check_current()?;
        let allocation = state.allocations.containing(address).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        if !base.is_null() {
            put(base, allocation.address)?;
        }
        if !size.is_null() {
            put(size, allocation.length)?;
        }
        Ok(())
    }

    // Where managed memory is makes no difference here: advice is taken, and nothing moves.
    fn cuMemAdvise(address: CUdeviceptr, length: usize, _advice: c_uint, _device: c_int) {
        managed(address, length)
    }

    fn cuMemAdvise_v2(address: CUdeviceptr, length: usize, _advice: c_uint, _location: CUmemLocation) {
        managed(address, length)
    }

    fn cuMemPrefetchAsync(address: CUdeviceptr, length: usize, _device: c_int, stream: CUstream) {
        prefetch("cuMemPrefetchAsync", address, length, stream)
    }

    fn cuMemPrefetchAsync_v2(
        address: CUdeviceptr,
        length: usize,
        _location: CUmemLocation,
        _flags: c_uint,
        stream: CUstream,
    ) {
        prefetch("cuMemPrefetchAsync_v2", address, length, stream)
    }

    fn cuStreamAttachMemAsync(stream: CUstream, address: CUdeviceptr, length: usize, _flags: c_uint) {
        prefetch("cuStreamAttachMemAsync", address, length, stream)
    }

    fn cuMemAllocAsync(out: *mut CUdeviceptr, length: usize, stream: CUstream) {
        allocate_async("cuMemAllocAsync", out, length, None, stream)
    }

    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) {
        let driver = Driver::get()?;
        driver.check_free(c"cuMemFreeAsync", address)?;
        let mut state = driver.enter();
        let stream = state.stream(stream.addr())?;
        if address == 0 {
            return Ok(());
        }
        let allocation = state.allocations.at(address).filter(|allocation| allocation.pool.is_some());
        let allocation = allocation.map(Arc::clone).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        check_is_no_node(&mut state, stream)?;
        let accesses = vec![Access::new(&whole(&allocation), allocation.length, true)];
        let request = Request::new("cuMemFreeAsync", accesses, Work::Free(Arc::clone(&allocation)));
        driver.enqueue(&mut state, stream, &Point::default(), request)?;
        // Whatever is enqueued from now on comes after the free, or is a race with it: it has no such memory any more.
        state.allocations.remove(address);
        state.forget_allocation(&allocation);
        Ok(())
    }
}

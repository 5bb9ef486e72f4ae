//! Memory of devices and their pools, pinned and managed memory, and attributes of addresses.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUpointer_attribute::*;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags as AccessFlags, CUmemAccessDesc, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPool_attribute as Attribute, CUmemPoolProps, CUmemoryPool, CUmemorytype,
    CUpointer_attribute as PointerAttribute, CUresult, CUstream,
};

use super::{put, put_if_wanted, refuse, result};
use crate::access::Access;
use crate::allocation::{Allocation, Kind, Pool, READ_WRITE};
use crate::config::host_memory;
use crate::current::Current;
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::handle::{PoolId, StreamId};
use crate::mapping::Mapping;
use crate::operation::Work;
use crate::report::say;
use crate::scheduler::Point;
use crate::state::{Request, State};
use cuda_common::finding::Finding;
use cuda_common::{FreeCheck, report_unsupported};

/// The checks of `Interface::on_free`.
static CHECKS: Mutex<Vec<FreeCheck>> = Mutex::new(Vec::new());

pub(super) fn add_check(check: FreeCheck) {
    CHECKS.lock().unwrap_or_else(PoisonError::into_inner).push(check);
}

/// Reports references to memory that is about to be freed.
///
/// # Errors
/// Returns an error in strict mode if another process or an NCCL registration refers to the memory. A reference by a graph is no
/// error, but the graph's next launch fails.
pub(super) fn check_free(driver: &Driver, function: &'static CStr, address: u64) -> Result<()> {
    let state = driver.lock();
    let Some(allocation) = state.allocations.at(address).map(Arc::clone) else { return Ok(()) };
    let is_it = |used: &Arc<Allocation>| Arc::ptr_eq(used, &allocation);
    let is_in_graph = state.execs.values().any(|exec| exec.memory().any(is_it));
    drop(state);
    let frees = || format!("{} frees {}", function.to_string_lossy(), allocation.description());
    if is_in_graph {
        let text = format!("{}, while a graph that uses it can still be launched", frees());
        say(driver.config, Finding::FreeUnderReference, 1, &text, driver.config.lists_leaks);
    }
    if allocation.is_open_elsewhere() {
        let text = format!(
            "{}, while another process has it open: cudaIpcCloseMemHandle has to come before",
            frees()
        );
        say(driver.config, Finding::FreeUnderReference, 1, &text, true);
        let is_refused = driver.config.lists_leaks && !driver.config.ignored.has(Finding::FreeUnderReference);
        ensure(!is_refused, CUDA_ERROR_INVALID_VALUE)?;
    }
    check_range_free(function, address, allocation.length)
}

/// Calls the checks of `Interface::on_free`. The driver's lock must not be held, because the checks may call CUDA.
pub(super) fn check_range_free(function: &'static CStr, address: u64, length: usize) -> Result<()> {
    let checks = CHECKS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // SAFETY: the caller of `Interface::on_free` promises that they can be called.
    let is_refused = |check: &FreeCheck| unsafe { check(function.as_ptr(), address, length) } != 0;
    // Each of them reports.
    let refused = checks.iter().filter(|check| is_refused(check)).count();
    ensure(refused == 0, CUDA_ERROR_INVALID_VALUE)
}

/// Allocates memory of the current context.
///
/// # Safety
/// `out` must be null or valid for a write.
unsafe fn allocate(out: *mut CUdeviceptr, kind: Kind, flags: c_uint, length: usize) -> Result<()> {
    ensure(length > 0 && !out.is_null(), CUDA_ERROR_INVALID_VALUE)?;
    let mut state = Driver::get()?.enter();
    let context = state.current()?;
    state.check_may_wait()?;
    let device = state.context(context)?.device;
    if kind != Kind::Pinned {
        state.allocations.check_room(device, length)?;
    } else if length > host_memory() {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let mapping = if kind == Kind::Device { Mapping::device(length)? } else { Mapping::host(length)? };
    let allocation = state.allocate(context, kind, None, flags, length, mapping)?;
    // SAFETY: the caller promises that it is valid.
    unsafe { put(out, allocation.address) }
}

fn free_host(function: &'static CStr, pointer: *mut c_void, kind: Kind, error: CUresult) -> Result<()> {
    let driver = Driver::get()?;
    let address = pointer.addr() as u64;
    check_free(driver, function, address)?;
    let mut state = driver.enter();
    let allocation = state.allocations.at(address).filter(|allocation| allocation.kind == kind);
    let Some(allocation) = allocation.map(Arc::clone) else {
        let is_inside = state.allocations.containing(address).is_some_and(|around| around.kind == kind);
        return Err(if is_inside { CUDA_ERROR_INVALID_VALUE } else { error });
    };
    state.check_may_wait()?;
    state.check_host(function.to_str().unwrap_or_default(), &allocation);
    // The program may use the memory for something else from now on, so that nothing else may still use it.
    state = driver.synchronize_all(state);
    state.remove_allocation(address).ok_or(error)?;
    state.check_current()
}

fn managed(address: CUdeviceptr, length: usize) -> Result<()> {
    let part = Driver::get()?.enter().allocations.part(address, length)?;
    ensure(part.is_some_and(|part| part.allocation.kind == Kind::Managed), CUDA_ERROR_INVALID_VALUE)
}

fn prefetch(function: &'static str, address: CUdeviceptr, length: usize, stream: CUstream) -> Result<()> {
    managed(address, length)?;
    let (driver, mut state) = Driver::entered()?;
    let stream = state.stream(stream.addr())?;
    driver.enqueue(&mut state, stream, &Point::default(), Request::of(function, Work::Nothing)).map(|_| ())
}

/// Checks that a stream is not captured, because allocations cannot be graph nodes here.
fn check_is_no_node(state: &mut State, stream: StreamId) -> Result<()> {
    if state.captures.of(stream).is_some() {
        report_unsupported("allocations and frees on a stream that is captured");
    }
    state.check_not_captured(stream)
}

/// Allocates memory in stream order.
///
/// # Safety
/// `out` must be null or valid for a write.
unsafe fn allocate_async(
    function: &'static str,
    out: *mut CUdeviceptr,
    length: usize,
    pool: Option<PoolId>,
    stream: CUstream,
) -> Result<()> {
    let (driver, mut state) = Driver::entered()?;
    let stream = state.stream(stream.addr())?;
    ensure(!out.is_null(), CUDA_ERROR_INVALID_VALUE)?;
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
    let request = Request::new(function, vec![Access::whole(&allocation)], Work::Nothing);
    if let Err(error) = driver.enqueue(&mut state, stream, &Point::default(), request) {
        state.remove_allocation(allocation.address);
        return Err(error);
    }
    // SAFETY: the caller promises that it is valid.
    unsafe { put(out, allocation.address) }
}

pub(super) fn allocate_shared(file: BorrowedFd<'_>, length: usize) -> Result<CUdeviceptr> {
    ensure(length > 0, CUDA_ERROR_INVALID_VALUE)?;
    let mapping = Mapping::shared(file, length)?;
    let mut state = Driver::get()?.enter();
    let context = state.current()?;
    let device = state.context(context)?.device;
    state.allocations.check_room(device, length)?;
    state.allocate(context, Kind::Device, None, 0, length, mapping).map(|allocation| allocation.address)
}

fn find(state: &mut State, pool: CUmemoryPool) -> Result<(PoolId, &mut Pool)> {
    let id = PoolId::of(pool);
    state.pools.get_mut(&id).map(|pool| (id, pool)).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn is_flag(code: c_uint) -> bool {
    code == Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES as c_uint
        || code == Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC as c_uint
        || code == Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES as c_uint
}

const THRESHOLD: c_uint = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as c_uint;
const RESERVED: c_uint = Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as c_uint;
const RESERVED_HIGH: c_uint = Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as c_uint;
const USED: c_uint = Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT as c_uint;
const USED_HIGH: c_uint = Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH as c_uint;

/// Stores an attribute with its C type.
///
/// # Safety
/// `out` must be null or valid for a write of the type that CUDA documents.
unsafe fn put_attribute(out: *mut c_void, code: c_uint, value: u64) -> Result<()> {
    const INTEGERS: [PointerAttribute; 3] = [
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
    ];
    const FLAGS: [PointerAttribute; 5] = [
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_MAPPED,
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
    ];
    let is_in = |attributes: &[PointerAttribute]| attributes.iter().any(|one| *one as c_uint == code);
    // SAFETY: the caller promises that it is valid.
    unsafe {
        match code {
            _ if is_in(&INTEGERS) => put(out.cast(), value as c_int),
            _ if is_in(&FLAGS) => put(out.cast(), value != 0),
            _ => put(out.cast(), value),
        }
    }
}

fn attribute(code: c_uint, state: &State, allocation: &Allocation, address: CUdeviceptr) -> Result<u64> {
    let Allocation { kind, backing, .. } = *allocation;
    let is_host = matches!(kind, Kind::Pinned | Kind::Registered);
    let memory = if is_host { CUmemorytype::CU_MEMORYTYPE_HOST } else { CUmemorytype::CU_MEMORYTYPE_DEVICE };
    Ok(match code {
        c if c == CU_POINTER_ATTRIBUTE_CONTEXT as c_uint => allocation.context.0,
        c if c == CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_uint => memory as u64,
        c if c == CU_POINTER_ATTRIBUTE_DEVICE_POINTER as c_uint => address,
        c if c == CU_POINTER_ATTRIBUTE_HOST_POINTER as c_uint && kind != Kind::Device => address,
        c if c == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_uint => 0,
        c if c == CU_POINTER_ATTRIBUTE_BUFFER_ID as c_uint => allocation.id,
        c if c == CU_POINTER_ATTRIBUTE_IS_MANAGED as c_uint => u64::from(kind == Kind::Managed),
        c if c == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint => allocation.device as u64,
        c if c == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as c_uint => {
            u64::from(allocation.export().is_some())
        }
        c if c == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as c_uint => allocation.address,
        c if c == CU_POINTER_ATTRIBUTE_RANGE_SIZE as c_uint => allocation.length as u64,
        c if c == CU_POINTER_ATTRIBUTE_MAPPED as c_uint => 1,
        c if c == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES as c_uint => {
            backing.map_or(0, |_| allocation.flags.into())
        }
        c if c == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE as c_uint => 0,
        c if c == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS as c_uint => {
            let device = Current::get().and_then(|context| state.contexts.get(&context));
            let device = device.map_or(allocation.device, |context| context.device);
            backing.map_or(READ_WRITE, |_| state.permission(allocation, device)).into()
        }
        c if c == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as c_uint => allocation.pool.map_or(0, |pool| pool.0),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// Returns the value of an attribute that memory does not have.
fn none(code: c_uint) -> Result<u64> {
    const NO_DEVICE: c_int = -2;
    let is_known = (1..=CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as c_uint).contains(&code);
    ensure(is_known, CUDA_ERROR_INVALID_VALUE)?;
    let is_device = code == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint;
    Ok(if is_device { NO_DEVICE as u64 } else { 0 })
}

/// `CUmemLocation` as C passes it: its type may be any number.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Location {
    _kind: c_uint,
    _id: c_int,
}

api! {
    fn cuMemAlloc_v2(out: *mut CUdeviceptr, length: usize) = allocate(out, Kind::Device, 0, length);

    fn cuMemAllocPitch_v2(
        out: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint,
    ) {
        const PITCH: usize = 512;
        let is_size = [4, 8, 16].contains(&element);
        let rounded = width.checked_next_multiple_of(PITCH).filter(|_| is_size);
        let length = rounded.and_then(|rounded| rounded.checked_mul(height));
        let (Some(rounded), Some(length)) = (rounded, length) else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        put(pitch, rounded)?;
        allocate(out, Kind::Device, 0, length)
    }

    fn cuMemAllocManaged(out: *mut CUdeviceptr, length: usize, flags: c_uint) {
        const GLOBAL: c_uint = 1;
        const HOST: c_uint = 2;
        ensure(flags == GLOBAL || flags == HOST, CUDA_ERROR_INVALID_VALUE)?;
        allocate(out, Kind::Managed, flags, length)
    }

    fn cuMemHostAlloc(out: *mut *mut c_void, length: usize, flags: c_uint) {
        const ALL_FLAGS: c_uint = 7;
        ensure(!out.is_null() && flags <= ALL_FLAGS, CUDA_ERROR_INVALID_VALUE)?;
        if length == 0 {
            Driver::get()?;
            return put(out, ptr::null_mut());
        }
        let mut address = 0;
        // SAFETY: a variable can be written.
        unsafe { allocate(&raw mut address, Kind::Pinned, flags, length)? };
        put(out, ptr::with_exposed_provenance_mut(address as usize))
    }

    fn cuMemAllocHost_v2(out: *mut *mut c_void, length: usize) = result(cuMemHostAlloc(out, length, 0));

    fn cuMemFree_v2(address: CUdeviceptr) {
        let driver = Driver::get()?;
        check_free(driver, c"cuMemFree_v2", address)?;
        let mut state = driver.enter();
        if address == 0 {
            return state.check_current();
        }
        let is_freed_so = |allocation: &&Arc<Allocation>| {
            let is_on_device = matches!(allocation.kind, Kind::Device | Kind::Managed);
            is_on_device && allocation.backing.is_none() && !allocation.is_imported
        };
        let Some(allocation) = state.allocations.at(address).filter(is_freed_so).map(Arc::clone) else {
            return state.check_current().and(Err(CUDA_ERROR_INVALID_VALUE));
        };
        state.check_may_wait()?;
        // Memory of a pool is freed without waiting: the program has to wait for its use.
        if allocation.pool.is_none() {
            state = driver.synchronize_context(state, allocation.context);
        }
        state.check_host("cuMemFree_v2", &allocation);
        // Another thread may have freed it meanwhile.
        let freed = state.remove_allocation(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        state.check(freed.context)
    }

    fn cuMemFreeHost(pointer: *mut c_void) {
        if pointer.is_null() {
            return Driver::get()?.enter().check_current();
        }
        free_host(c"cuMemFreeHost", pointer, Kind::Pinned, CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMemHostUnregister(pointer: *mut c_void)
        = free_host(c"cuMemHostUnregister", pointer, Kind::Registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);

    fn cuMemHostRegister_v2(pointer: *mut c_void, length: usize, flags: c_uint) {
        const ALL_FLAGS: c_uint = 15;
        let mut state = Driver::get()?.enter();
        let context = state.current()?;
        let address = pointer.expose_provenance() as u64;
        let is_range = address != 0 && length != 0 && address.checked_add(length as u64).is_some();
        ensure(is_range && flags <= ALL_FLAGS, CUDA_ERROR_INVALID_VALUE)?;
        state.check_may_wait()?;
        let is_free = !state.allocations.overlaps(address, length);
        ensure(is_free, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)?;
        let device = state.context(context)?.device;
        let allocation = Allocation::new(Kind::Registered, device, context, address, length);
        state.allocations.insert(Allocation { flags, ..allocation });
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(out: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint) {
        let state = Driver::get()?.enter();
        let address = pointer.addr() as u64;
        let is_host = |allocation: &Arc<Allocation>| matches!(allocation.kind, Kind::Pinned | Kind::Registered);
        let is_known = flags == 0 && state.allocations.containing(address).is_some_and(is_host);
        ensure(is_known, CUDA_ERROR_INVALID_VALUE)?;
        // Devices and the host use the same address.
        put(out, address)
    }

    fn cuMemHostGetFlags(out: *mut c_uint, pointer: *mut c_void) {
        let state = Driver::get()?.enter();
        let allocation = state.allocations.containing(pointer.addr() as u64);
        let allocation = allocation.filter(|allocation| allocation.kind == Kind::Pinned);
        put(out, allocation.ok_or(CUDA_ERROR_INVALID_VALUE)?.flags)
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let mut state = Driver::get()?.enter();
        let context = state.current()?;
        let device = state.context(context)?.device;
        put_if_wanted(free, state.allocations.free(device));
        put_if_wanted(total, state.allocations.total);
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) {
        let state = Driver::get()?.enter();
        state.check_current()?;
        let allocation = state.allocations.containing(address).ok_or(CUDA_ERROR_NOT_FOUND)?;
        put_if_wanted(base, allocation.address);
        put_if_wanted(size, allocation.length);
        Ok(())
    }

    // The location of managed memory makes no difference here: nothing moves.
    fn cuMemAdvise(address: CUdeviceptr, length: usize, _advice: c_uint, _device: c_int)
        = managed(address, length);

    fn cuMemAdvise_v2(address: CUdeviceptr, length: usize, _advice: c_uint, _location: Location)
        = managed(address, length);

    fn cuMemPrefetchAsync(address: CUdeviceptr, length: usize, _device: c_int, stream: CUstream)
        = prefetch("cuMemPrefetchAsync", address, length, stream);

    fn cuMemPrefetchAsync_v2(
        address: CUdeviceptr, length: usize, _location: Location, _flags: c_uint, stream: CUstream,
    ) = prefetch("cuMemPrefetchAsync_v2", address, length, stream);

    fn cuStreamAttachMemAsync(stream: CUstream, address: CUdeviceptr, length: usize, _flags: c_uint)
        = prefetch("cuStreamAttachMemAsync", address, length, stream);

    fn cuMemAllocAsync(out: *mut CUdeviceptr, length: usize, stream: CUstream)
        = allocate_async("cuMemAllocAsync", out, length, None, stream);

    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) {
        let driver = Driver::get()?;
        check_free(driver, c"cuMemFreeAsync", address)?;
        let mut state = driver.enter();
        let stream = state.stream(stream.addr())?;
        if address == 0 {
            return Ok(());
        }
        let allocation = state.allocations.at(address).filter(|allocation| allocation.pool.is_some());
        let allocation = allocation.map(Arc::clone).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        check_is_no_node(&mut state, stream)?;
        let work = Work::Free(Arc::clone(&allocation));
        let request = Request::new("cuMemFreeAsync", vec![Access::whole(&allocation)], work);
        driver.enqueue(&mut state, stream, &Point::default(), request)?;
        // What is enqueued from now on does not find the memory: it follows the free, or races with it.
        state.remove_allocation(address);
        Ok(())
    }

    fn cuMemPoolCreate(out: *mut CUmemoryPool, properties: *const CUmemPoolProps) {
        const PINNED: c_uint = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint;
        const DEVICE: c_uint = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint;
        let driver = Driver::get()?;
        ensure(!out.is_null() && !properties.is_null(), CUDA_ERROR_INVALID_VALUE)?;
        let kind = number!((*properties).allocType);
        let place = number!((*properties).location.type_);
        let handles = number!((*properties).handleTypes);
        let id = (&raw const (*properties).location.id).read();
        ensure(kind == PINNED && place == DEVICE, CUDA_ERROR_INVALID_VALUE)?;
        if handles != 0 {
            return refuse("cuMemPoolCreate with handle types");
        }
        let device = driver.device(id)?;
        let mut state = driver.enter();
        let id = PoolId(state.next_handle());
        state.pools.insert(id, Pool { device, ..Pool::default() });
        put(out, id.pointer())
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        let mut state = Driver::get()?.enter();
        let (id, pool) = find(&mut state, pool)?;
        ensure(!pool.is_default, CUDA_ERROR_INVALID_VALUE)?;
        state.pools.remove(&id);
        for device in state.devices.iter_mut().filter(|device| device.pool == id) {
            device.pool = device.default_pool;
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, code: c_uint, out: *mut c_void) {
        let mut state = Driver::get()?.enter();
        let (_, pool) = find(&mut state, pool)?;
        let set = pool.attributes.get(&code).copied();
        let value = match code {
            _ if is_flag(code) => return put(out.cast(), set.unwrap_or(1) as c_int),
            THRESHOLD => set.unwrap_or(0),
            RESERVED | USED => pool.used,
            RESERVED_HIGH | USED_HIGH => pool.high,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        put(out.cast::<u64>(), value)
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, code: c_uint, value: *mut c_void) {
        let mut state = Driver::get()?.enter();
        let (_, pool) = find(&mut state, pool)?;
        ensure(!value.is_null(), CUDA_ERROR_INVALID_VALUE)?;
        let is_flag = is_flag(code);
        let value = if is_flag { value.cast::<c_int>().read() as u64 } else { value.cast::<u64>().read() };
        match code {
            // The high-water marks can only be reset.
            RESERVED_HIGH | USED_HIGH if value == 0 => pool.high = pool.used,
            _ if is_flag || code == THRESHOLD => drop(pool.attributes.insert(code, value)),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, _keep: usize) {
        // A pool keeps no memory.
        find(&mut Driver::get()?.enter(), pool).map(|_| ())
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, descriptions: *const CUmemAccessDesc, count: usize) {
        let driver = Driver::get()?;
        find(&mut driver.enter(), pool)?;
        ensure(!descriptions.is_null() || count == 0, CUDA_ERROR_INVALID_VALUE)?;
        for index in 0..count {
            driver.device((&raw const (*descriptions.add(index)).location.id).read())?;
        }
        // All devices can access all memory.
        Ok(())
    }

    fn cuMemPoolGetAccess(out: *mut c_uint, pool: CUmemoryPool, location: *mut CUmemLocation) {
        let driver = Driver::get()?;
        find(&mut driver.enter(), pool)?;
        ensure(!location.is_null(), CUDA_ERROR_INVALID_VALUE)?;
        driver.device((&raw const (*location).id).read())?;
        put(out, AccessFlags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as c_uint)
    }

    fn cuMemAllocFromPoolAsync(out: *mut CUdeviceptr, length: usize, pool: CUmemoryPool, stream: CUstream) {
        let (id, _) = find(&mut Driver::get()?.enter(), pool)?;
        allocate_async("cuMemAllocFromPoolAsync", out, length, Some(id), stream)
    }

    fn cuPointerGetAttribute(out: *mut c_void, code: c_uint, address: CUdeviceptr) {
        let state = Driver::get()?.enter();
        let allocation = state.allocations.containing(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        put_attribute(out, code, attribute(code, &state, allocation, address)?)
    }

    fn cuPointerGetAttributes(
        count: c_uint, codes: *mut c_uint, outs: *mut *mut c_void, address: CUdeviceptr,
    ) {
        let state = Driver::get()?.enter();
        ensure(count == 0 || !(codes.is_null() || outs.is_null()), CUDA_ERROR_INVALID_VALUE)?;
        let allocation = state.allocations.containing(address);
        for index in 0..count as usize {
            let (code, out) = (codes.add(index).read(), outs.add(index).read());
            // Attributes that the memory does not have are zero.
            let found = allocation.and_then(|one| attribute(code, &state, one, address).ok());
            put_attribute(out, code, found.unwrap_or(none(code)?))?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: *const c_void, code: c_uint, address: CUdeviceptr) {
        let state = Driver::get()?.enter();
        // Copies of such memory would have to be synchronous, which is the only thing that can be set.
        let is_known = code == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_uint
            && state.allocations.containing(address).is_some();
        ensure(!value.is_null() && is_known, CUDA_ERROR_INVALID_VALUE)?;
        refuse("cuPointerSetAttribute")
    }
}

//! Allocation of device, pinned and managed memory, and what is known of an address.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::{CUdeviceptr, CUipcMemHandle, CUmemLocation, CUpointer_attribute};
use cudarc::runtime::sys::{
    cudaError, cudaIpcMemHandle_t, cudaMemLocation, cudaMemPool_t, cudaMemoryType, cudaPointerAttributes,
    cudaStream_t,
};

use crate::context;
use crate::driver::Driver;
use crate::status::{Result, Status};

/// The distance between rows is a multiple of so many bytes.
const PITCH: usize = 512;
/// The device of memory that CUDA does not know, `cudaInvalidDeviceId`.
const INVALID_DEVICE: c_int = -2;

const _: () = {
    assert!(size_of::<cudaMemLocation>() == size_of::<CUmemLocation>());
    assert!(size_of::<cudaIpcMemHandle_t>() == size_of::<CUipcMemHandle>());
    assert!(size_of::<CUdeviceptr>() == size_of::<*mut c_void>());
};

/// A location as C passes it: its type may be any number.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Location {
    kind: c_uint,
    id: c_int,
}

impl Location {
    /// Returns the driver's struct, for the locations that it declares.
    fn checked(self) -> Result<CUmemLocation> {
        use cudarc::driver::sys::CUmemLocationType::{
            CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA,
            CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
        };
        let known = [
            CU_MEM_LOCATION_TYPE_DEVICE,
            CU_MEM_LOCATION_TYPE_HOST,
            CU_MEM_LOCATION_TYPE_HOST_NUMA,
            CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
        ];
        let type_ =
            known.into_iter().find(|known| *known as c_uint == self.kind).ok_or(Status::INVALID_VALUE)?;
        Ok(location(type_, self.id))
    }
}

/// Returns the location of a device, or of the host for -1.
#[cfg(feature = "cuda-12")]
fn device_location(device: c_int) -> CUmemLocation {
    use cudarc::driver::sys::CUmemLocationType::{CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_HOST};
    if device == -1 {
        location(CU_MEM_LOCATION_TYPE_HOST, 0)
    } else {
        location(CU_MEM_LOCATION_TYPE_DEVICE, device)
    }
}

fn location(type_: cudarc::driver::sys::CUmemLocationType, id: c_int) -> CUmemLocation {
    CUmemLocation { type_, id }
}

/// Allocates device memory; none for size 0.
///
/// # Safety
///
/// `address` is null or valid for a write.
unsafe fn allocate(address: *mut *mut c_void, size: usize) -> Result<()> {
    let driver = context::bind()?;
    if address.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if size == 0 {
        // SAFETY: it is not null.
        unsafe { *address = std::ptr::null_mut() };
        return Ok(());
    }
    // SAFETY: it is not null, and a device address is as large as a pointer.
    unsafe { driver.cuMemAlloc_v2(address.cast(), size) }
}

/// Allocates pinned memory; none for size 0.
///
/// # Safety
///
/// `address` is null or valid for a write.
unsafe fn allocate_pinned(address: *mut *mut c_void, size: usize, flags: c_uint) -> Result<()> {
    let driver = context::bind()?;
    if address.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if size == 0 {
        // SAFETY: it is not null.
        unsafe { *address = std::ptr::null_mut() };
        return Ok(());
    }
    // SAFETY: it is not null.
    unsafe { driver.cuMemHostAlloc(address, size, flags) }
}

/// Returns an attribute of an address, or `None` if the driver knows nothing of it.
fn attribute<T: Default>(
    driver: &Driver,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Result<Option<T>> {
    let mut value = T::default();
    // SAFETY: the callers choose the type of the attribute, to which the driver writes; any address may be asked for.
    match unsafe { driver.cuPointerGetAttribute((&raw mut value).cast(), attribute as c_uint, address) } {
        Ok(()) => Ok(Some(value)),
        Err(Status::INVALID_VALUE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fills in what is known of an address.
///
/// # Safety
///
/// `out` is valid for writes.
unsafe fn describe(out: *mut cudaPointerAttributes, pointer: *const c_void) -> Result<()> {
    let driver = context::bind()?;
    let address = pointer as CUdeviceptr;
    let kind: Option<c_uint> =
        attribute(driver, CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)?;
    // SAFETY: all bytes zero are a value of the struct: unregistered memory is type 0.
    let mut found: cudaPointerAttributes = unsafe { std::mem::zeroed() };
    if let Some(kind) = kind {
        let is_managed: Option<c_uint> =
            attribute(driver, CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, address)?;
        found.type_ = match kind {
            _ if is_managed.is_some_and(|is| is != 0) => cudaMemoryType::cudaMemoryTypeManaged,
            1 => cudaMemoryType::cudaMemoryTypeHost,
            _ => cudaMemoryType::cudaMemoryTypeDevice,
        };
        found.device = attribute(driver, CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)?
            .unwrap_or(0);
        let on_device: Option<CUdeviceptr> =
            attribute(driver, CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address)?;
        found.devicePointer = on_device.unwrap_or(0) as *mut c_void;
        if found.type_ != cudaMemoryType::cudaMemoryTypeDevice {
            let on_host: Option<CUdeviceptr> =
                attribute(driver, CUpointer_attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER, address)?;
            found.hostPointer = on_host.unwrap_or(0) as *mut c_void;
        }
    } else {
        found.device = INVALID_DEVICE;
        found.hostPointer = pointer.cast_mut();
    }
    // SAFETY: as the caller guarantees.
    unsafe { out.write(found) };
    Ok(())
}

api! {
    fn cudaMalloc(address: *mut *mut c_void, size: usize) {
        allocate(address, size)
    }

    fn cudaMallocPitch(address: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) {
        let pitch = pitch.as_mut().ok_or(Status::INVALID_VALUE)?;
        let distance = width.checked_next_multiple_of(PITCH);
        let size = distance.and_then(|distance| distance.checked_mul(height));
        let (Some(distance), Some(size)) = (distance, size) else {
            return Err(cudaError::cudaErrorMemoryAllocation.into());
        };
        allocate(address, size)?;
        *pitch = distance;
        Ok(())
    }

    fn cudaMallocManaged(address: *mut *mut c_void, size: usize, flags: c_uint) {
        let driver = context::bind()?;
        let out = address.as_mut().ok_or(Status::INVALID_VALUE)?;
        if size == 0 {
            *out = null_mut();
            return Ok(());
        }
        driver.cuMemAllocManaged(address.cast(), size, flags)
    }

    fn cudaFree(address: *mut c_void) {
        context::bind()?.cuMemFree_v2(address as CUdeviceptr)
    }

    per_thread(stream)
    fn cudaMallocAsync(address: *mut *mut c_void, size: usize, stream: cudaStream_t) {
        let driver = context::bind()?;
        let address = address.as_mut().ok_or(Status::INVALID_VALUE)?;
        if size == 0 {
            *address = std::ptr::null_mut();
            return Ok(());
        }
        driver.cuMemAllocAsync((&raw mut *address).cast(), size, stream.cast())
    }

    per_thread(stream)
    fn cudaMallocFromPoolAsync(
        address: *mut *mut c_void, size: usize, pool: cudaMemPool_t, stream: cudaStream_t,
    ) {
        let driver = context::bind()?;
        if address.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        driver.cuMemAllocFromPoolAsync(address.cast(), size, pool.cast(), stream.cast())
    }

    per_thread(stream)
    fn cudaFreeAsync(address: *mut c_void, stream: cudaStream_t) {
        let driver = context::bind()?;
        if address.is_null() { Ok(()) } else { driver.cuMemFreeAsync(address as CUdeviceptr, stream.cast()) }
    }

    fn cudaMallocHost(address: *mut *mut c_void, size: usize) {
        allocate_pinned(address, size, 0)
    }

    fn cudaHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint) {
        allocate_pinned(address, size, flags)
    }

    fn cudaFreeHost(address: *mut c_void) {
        context::bind()?.cuMemFreeHost(address)
    }

    fn cudaHostRegister(address: *mut c_void, size: usize, flags: c_uint) {
        context::bind()?.cuMemHostRegister_v2(address, size, flags)
    }

    fn cudaHostUnregister(address: *mut c_void) {
        context::bind()?.cuMemHostUnregister(address)
    }

    fn cudaHostGetDevicePointer(device: *mut *mut c_void, host: *mut c_void, flags: c_uint) {
        context::bind()?.cuMemHostGetDevicePointer_v2(device.cast(), host, flags)
    }

    fn cudaHostGetFlags(flags: *mut c_uint, address: *mut c_void) {
        context::bind()?.cuMemHostGetFlags(flags, address)
    }

    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) {
        context::bind()?.cuMemGetInfo_v2(free, total)
    }

    fn cudaPointerGetAttributes(attributes: *mut cudaPointerAttributes, pointer: *const c_void) {
        if attributes.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        describe(attributes, pointer)
    }

    #[cfg(feature = "cuda-12")]
    per_thread(stream)
    fn cudaMemPrefetchAsync(address: *const c_void, size: usize, device: c_int, stream: cudaStream_t) {
        let location = device_location(device);
        context::bind()?.cuMemPrefetchAsync_v2(address as CUdeviceptr, size, location, 0, stream.cast())
    }

    #[cfg(feature = "cuda-12")]
    per_thread(stream)
    fn cudaMemPrefetchAsync_v2(
        address: *const c_void, size: usize, location: Location, flags: c_uint, stream: cudaStream_t,
    ) {
        let location = location.checked()?;
        context::bind()?.cuMemPrefetchAsync_v2(address as CUdeviceptr, size, location, flags, stream.cast())
    }

    #[cfg(feature = "cuda-13")]
    per_thread(stream)
    fn cudaMemPrefetchAsync(
        address: *const c_void, size: usize, location: Location, flags: c_uint, stream: cudaStream_t,
    ) {
        let location = location.checked()?;
        context::bind()?.cuMemPrefetchAsync_v2(address as CUdeviceptr, size, location, flags, stream.cast())
    }

    #[cfg(feature = "cuda-12")]
    fn cudaMemAdvise(address: *const c_void, size: usize, advice: c_uint, device: c_int) {
        context::bind()?.cuMemAdvise_v2(address as CUdeviceptr, size, advice, device_location(device))
    }

    #[cfg(feature = "cuda-12")]
    fn cudaMemAdvise_v2(address: *const c_void, size: usize, advice: c_uint, location: Location) {
        context::bind()?.cuMemAdvise_v2(address as CUdeviceptr, size, advice, location.checked()?)
    }

    #[cfg(feature = "cuda-13")]
    fn cudaMemAdvise(address: *const c_void, size: usize, advice: c_uint, location: Location) {
        context::bind()?.cuMemAdvise_v2(address as CUdeviceptr, size, advice, location.checked()?)
    }

    fn cudaIpcGetMemHandle(handle: *mut cudaIpcMemHandle_t, address: *mut c_void) {
        context::bind()?.cuIpcGetMemHandle(handle.cast(), address as CUdeviceptr)
    }

    fn cudaIpcOpenMemHandle(address: *mut *mut c_void, handle: CUipcMemHandle, flags: c_uint) {
        context::bind()?.cuIpcOpenMemHandle_v2(address.cast(), handle, flags)
    }

    fn cudaIpcCloseMemHandle(address: *mut c_void) {
        context::bind()?.cuIpcCloseMemHandle(address as CUdeviceptr)
    }
}

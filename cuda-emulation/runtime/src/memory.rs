//! Allocation of device, pinned and managed memory, memory pools, and the attributes of an address.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::{
    CUdeviceptr, CUipcMemHandle, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool, CUpointer_attribute, CUstream,
};
use cudarc::runtime::sys::{
    cudaError, cudaIpcMemHandle_t, cudaMemAccessDesc, cudaMemLocation, cudaMemPoolProps, cudaMemoryType,
    cudaPointerAttributes,
};

use crate::context::bind;
use crate::driver::{Driver, Location, get};
use crate::status::{Result, Status};

/// The distance between rows is a multiple of this number of bytes.
const PITCH: usize = 512;
/// The device of memory that CUDA did not allocate: `cudaInvalidDeviceId`.
const INVALID_DEVICE: c_int = -2;

// The driver's structs and addresses replace the runtime's.
const _: () = {
    assert!(size_of::<cudaMemLocation>() == size_of::<CUmemLocation>());
    assert!(size_of::<cudaIpcMemHandle_t>() == size_of::<CUipcMemHandle>());
    assert!(size_of::<cudaMemPoolProps>() == size_of::<CUmemPoolProps>());
    assert!(size_of::<cudaMemAccessDesc>() == size_of::<CUmemAccessDesc>());
    assert!(size_of::<Location>() == size_of::<CUmemLocation>());
    assert!(size_of::<CUdeviceptr>() == size_of::<*mut c_void>());
};

/// Calls a function of the driver that allocates, or stores null for size 0.
///
/// # Safety
/// `address` must be null or valid for a write.
unsafe fn allocate(
    address: *mut *mut c_void,
    size: usize,
    function: impl FnOnce(&Driver) -> Result<()>,
) -> Result<()> {
    let driver = bind()?;
    // SAFETY: as the caller guarantees.
    let address = unsafe { address.as_mut() }.ok_or(Status::INVALID_VALUE)?;
    if size == 0 {
        *address = null_mut();
        return Ok(());
    }
    function(driver)
}

/// Returns an attribute of an address, or 0 if the driver has no such attribute for it.
///
/// # Safety
/// `T` must be the type of the attribute.
unsafe fn attribute<T: Default>(
    driver: &Driver,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Result<T> {
    let mut value = T::default();
    // SAFETY: the caller guarantees that the driver writes a value of this type; the address may be any.
    match unsafe { driver.cuPointerGetAttribute((&raw mut value).cast(), attribute as c_uint, address) } {
        Ok(()) | Err(Status::INVALID_VALUE) => Ok(value),
        Err(error) => Err(error),
    }
}

fn describe(pointer: *mut c_void) -> Result<cudaPointerAttributes> {
    use CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    };
    const UNREGISTERED: c_uint = 0;
    const HOST: c_uint = 1;
    let driver = bind()?;
    let address = pointer as CUdeviceptr;
    // SAFETY: all bytes zero are a value of the struct: unregistered memory is type 0.
    let mut found: cudaPointerAttributes = unsafe { std::mem::zeroed() };
    // SAFETY: the attributes are 32-bit numbers, and the pointers are as large as a device address.
    unsafe {
        let kind: c_uint = attribute(driver, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)?;
        if kind == UNREGISTERED {
            found.device = INVALID_DEVICE;
            found.hostPointer = pointer;
            return Ok(found);
        }
        let is_managed: c_uint = attribute(driver, CU_POINTER_ATTRIBUTE_IS_MANAGED, address)?;
        found.type_ = match kind {
            _ if is_managed != 0 => cudaMemoryType::cudaMemoryTypeManaged,
            HOST => cudaMemoryType::cudaMemoryTypeHost,
            _ => cudaMemoryType::cudaMemoryTypeDevice,
        };
        found.device = attribute(driver, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)?;
        let on_device: CUdeviceptr = attribute(driver, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address)?;
        found.devicePointer = on_device as *mut c_void;
        if found.type_ != cudaMemoryType::cudaMemoryTypeDevice {
            let on_host: CUdeviceptr = attribute(driver, CU_POINTER_ATTRIBUTE_HOST_POINTER, address)?;
            found.hostPointer = on_host as *mut c_void;
        }
    }
    Ok(found)
}

api! {
    fn cudaMalloc(address: *mut *mut c_void, size: usize)
        = allocate(address, size, |driver| driver.cuMemAlloc_v2(address.cast(), size));

    fn cudaMallocPitch(address: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) {
        let pitch = pitch.as_mut().ok_or(Status::INVALID_VALUE)?;
        let distance = width.checked_next_multiple_of(PITCH);
        let size = distance.and_then(|distance| distance.checked_mul(height));
        let (Some(distance), Some(size)) = (distance, size) else {
            return Err(cudaError::cudaErrorMemoryAllocation.into());
        };
        allocate(address, size, |driver| driver.cuMemAlloc_v2(address.cast(), size))?;
        *pitch = distance;
        Ok(())
    }

    fn cudaMallocManaged(address: *mut *mut c_void, size: usize, flags: c_uint)
        = allocate(address, size, |driver| driver.cuMemAllocManaged(address.cast(), size, flags));

    fn cudaMallocHost(address: *mut *mut c_void, size: usize)
        = allocate(address, size, |driver| driver.cuMemHostAlloc(address, size, 0));

    fn cudaHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint)
        = allocate(address, size, |driver| driver.cuMemHostAlloc(address, size, flags));

    per_thread(stream) fn cudaMallocAsync(address: *mut *mut c_void, size: usize, stream: CUstream)
        = allocate(address, size, |driver| driver.cuMemAllocAsync(address.cast(), size, stream));

    per_thread(stream) fn cudaMallocFromPoolAsync = bind().cuMemAllocFromPoolAsync(
        address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream,
    );

    per_thread(stream) fn cudaFreeAsync(address: CUdeviceptr, stream: CUstream) {
        let driver = bind()?;
        if address == 0 { Ok(()) } else { driver.cuMemFreeAsync(address, stream) }
    }

    fn cudaFree = bind().cuMemFree_v2(address: CUdeviceptr);
    fn cudaFreeHost = bind().cuMemFreeHost(address: *mut c_void);
    fn cudaHostRegister = bind().cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: c_uint);
    fn cudaHostUnregister = bind().cuMemHostUnregister(address: *mut c_void);
    fn cudaHostGetDevicePointer
        = bind().cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, host: *mut c_void, flags: c_uint);
    fn cudaHostGetFlags = bind().cuMemHostGetFlags(flags: *mut c_uint, address: *mut c_void);
    fn cudaMemGetInfo = bind().cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cudaIpcGetMemHandle = bind().cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr);
    fn cudaIpcOpenMemHandle
        = bind().cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
    fn cudaIpcCloseMemHandle = bind().cuIpcCloseMemHandle(address: CUdeviceptr);

    fn cudaPointerGetAttributes(attributes: *mut cudaPointerAttributes, pointer: *mut c_void) {
        if attributes.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        attributes.write(describe(pointer)?);
        Ok(())
    }

    #[cfg(feature = "cuda-12")]
    per_thread(stream)
    fn cudaMemPrefetchAsync(address: CUdeviceptr, size: usize, device: c_int, stream: CUstream)
        = bind()?.cuMemPrefetchAsync_v2(address, size, Location::of_device(device), 0, stream);

    #[cfg(feature = "cuda-12")]
    fn cudaMemAdvise(address: CUdeviceptr, size: usize, advice: c_uint, device: c_int)
        = bind()?.cuMemAdvise_v2(address, size, advice, Location::of_device(device));

    fn cudaMemPoolCreate = get().cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    fn cudaMemPoolDestroy = get().cuMemPoolDestroy(pool: CUmemoryPool);
    fn cudaMemPoolTrimTo = get().cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    fn cudaMemPoolGetAttribute = get().cuMemPoolGetAttribute(
        pool: CUmemoryPool, attribute: c_uint => CUmemPool_attribute, value: *mut c_void,
    );
    fn cudaMemPoolSetAttribute = get().cuMemPoolSetAttribute(
        pool: CUmemoryPool, attribute: c_uint => CUmemPool_attribute, value: *mut c_void,
    );
    fn cudaMemPoolSetAccess
        = get().cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
    fn cudaMemPoolGetAccess = get().cuMemPoolGetAccess(
        access: *mut c_uint => *mut CUmemAccess_flags, pool: CUmemoryPool, location: *mut CUmemLocation,
    );
}

/// Exports the functions that take a location, whose names depend on the CUDA version.
macro_rules! with_location {
    ($prefetch:ident $advise:ident) => {
        api! {
            per_thread(stream) fn $prefetch(
                address: CUdeviceptr, size: usize, location: Location, flags: c_uint, stream: CUstream,
            ) {
                let location = location.checked()?;
                bind()?.cuMemPrefetchAsync_v2(address, size, location, flags, stream)
            }

            fn $advise(address: CUdeviceptr, size: usize, advice: c_uint, location: Location)
                = bind()?.cuMemAdvise_v2(address, size, advice, location.checked()?);
        }
    };
}

#[cfg(feature = "cuda-12")]
with_location! { cudaMemPrefetchAsync_v2 cudaMemAdvise_v2 }
#[cfg(feature = "cuda-13")]
with_location! { cudaMemPrefetchAsync cudaMemAdvise }

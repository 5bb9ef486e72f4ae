//! `cudaDeviceProp`.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::CUdevice_attribute;
use cudarc::runtime::sys::cudaDeviceProp;

use crate::driver::{self, Driver};
#[cfg(feature = "cuda-12")]
use crate::status::Status;
use crate::status::{Result, put};

/// Returns an attribute of a device as a number of the struct.
fn attribute<T: TryFrom<c_int> + Default>(
    driver: &Driver,
    device: c_int,
    attribute: CUdevice_attribute,
) -> T {
    let mut value = 0;
    // SAFETY: `value` is valid for a write.
    let found = unsafe { driver.cuDeviceGetAttribute(&raw mut value, attribute as c_uint, device) };
    found.ok().and_then(|()| value.try_into().ok()).unwrap_or_default()
}

fn properties(device: c_int) -> Result<cudaDeviceProp> {
    use CUdevice_attribute as A;
    let driver = driver::get()?;
    // SAFETY: all bytes zero are a value of the struct, which has only numbers and arrays of numbers.
    let mut p: cudaDeviceProp = unsafe { std::mem::zeroed() };
    let length = c_int::try_from(p.name.len()).unwrap_or(c_int::MAX);
    // SAFETY: the fields are valid for writes of their lengths.
    unsafe {
        driver.cuDeviceGetName(p.name.as_mut_ptr(), length, device)?;
        driver.cuDeviceTotalMem_v2(&raw mut p.totalGlobalMem, device)?;
        driver.cuDeviceGetUuid_v2((&raw mut p.uuid).cast(), device)?;
    }
    macro_rules! fill {
        ($($field:ident $([$index:literal])?: $attribute:ident;)*) => {
            $(p.$field $([$index])? = attribute(driver, device, A::$attribute);)*
        };
    }
    // The attributes that the driver has. The other fields are 0, as its other attributes.
    fill! {
        sharedMemPerBlock: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK;
        regsPerBlock: CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK;
        warpSize: CU_DEVICE_ATTRIBUTE_WARP_SIZE;
        memPitch: CU_DEVICE_ATTRIBUTE_MAX_PITCH;
        maxThreadsPerBlock: CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        maxThreadsDim[0]: CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X;
        maxThreadsDim[1]: CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y;
        maxThreadsDim[2]: CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z;
        maxGridSize[0]: CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X;
        maxGridSize[1]: CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y;
        maxGridSize[2]: CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z;
        totalConstMem: CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY;
        major: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        minor: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        textureAlignment: CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT;
        multiProcessorCount: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        canMapHostMemory: CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY;
        concurrentKernels: CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS;
        pciBusID: CU_DEVICE_ATTRIBUTE_PCI_BUS_ID;
        asyncEngineCount: CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT;
        unifiedAddressing: CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
        memoryBusWidth: CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH;
        l2CacheSize: CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        maxThreadsPerMultiProcessor: CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR;
        streamPrioritiesSupported: CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED;
        sharedMemPerMultiprocessor: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        regsPerMultiprocessor: CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR;
        managedMemory: CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
        concurrentManagedAccess: CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        canUseHostPointerForRegisteredMem: CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        sharedMemPerBlockOptin: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        maxBlocksPerMultiProcessor: CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR;
        hostRegisterSupported: CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
        memoryPoolsSupported: CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        ipcEventSupported: CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED;
    }
    // Not in CUDA 13.
    #[cfg(feature = "cuda-12")]
    fill! {
        clockRate: CU_DEVICE_ATTRIBUTE_CLOCK_RATE;
        deviceOverlap: CU_DEVICE_ATTRIBUTE_GPU_OVERLAP;
        memoryClockRate: CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE;
    }
    Ok(p)
}

api! {
    #[cfg(feature = "cuda-12")]
    fn cudaGetDeviceProperties_v2(out: *mut cudaDeviceProp, device: c_int) = put(out, properties(device)?);

    // For programs that were compiled with CUDA 11, whose struct is the beginning of CUDA 12's.
    #[cfg(feature = "cuda-12")]
    fn cudaGetDeviceProperties(out: *mut cudaDeviceProp, device: c_int) {
        if out.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let properties = properties(device)?;
        let length = std::mem::offset_of!(cudaDeviceProp, hostRegisterSupported);
        (&raw const properties).cast::<u8>().copy_to_nonoverlapping(out.cast(), length);
        Ok(())
    }

    #[cfg(feature = "cuda-13")]
    fn cudaGetDeviceProperties(out: *mut cudaDeviceProp, device: c_int) = put(out, properties(device)?);
}

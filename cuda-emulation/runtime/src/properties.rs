//! `cudaDeviceProp`.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::CUdevice_attribute;
use cudarc::runtime::sys::cudaDeviceProp;

use crate::driver::{self, Driver};
#[cfg(feature = "cuda-12")]
use crate::status::Status;
use crate::status::{Result, put};

/// Returns an attribute of a device as a number of the struct, or 0 if the driver does not have it.
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
        texturePitchAlignment: CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT;
        multiProcessorCount: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        integrated: CU_DEVICE_ATTRIBUTE_INTEGRATED;
        canMapHostMemory: CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY;
        maxTexture1D: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH;
        maxTexture1DMipmap: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH;
        maxTexture2D[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH;
        maxTexture2D[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT;
        maxTexture2DMipmap[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH;
        maxTexture2DMipmap[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT;
        maxTexture2DLinear[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH;
        maxTexture2DLinear[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT;
        maxTexture2DLinear[2]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH;
        maxTexture2DGather[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH;
        maxTexture2DGather[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT;
        maxTexture3D[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH;
        maxTexture3D[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT;
        maxTexture3D[2]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH;
        maxTexture3DAlt[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE;
        maxTexture3DAlt[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE;
        maxTexture3DAlt[2]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE;
        maxTextureCubemap: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH;
        maxTexture1DLayered[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH;
        maxTexture1DLayered[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS;
        maxTexture2DLayered[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH;
        maxTexture2DLayered[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT;
        maxTexture2DLayered[2]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS;
        maxTextureCubemapLayered[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH;
        maxTextureCubemapLayered[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS;
        maxSurface1D: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH;
        maxSurface2D[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH;
        maxSurface2D[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT;
        maxSurface3D[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH;
        maxSurface3D[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT;
        maxSurface3D[2]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH;
        maxSurface1DLayered[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH;
        maxSurface1DLayered[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS;
        maxSurface2DLayered[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH;
        maxSurface2DLayered[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT;
        maxSurface2DLayered[2]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS;
        maxSurfaceCubemap: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH;
        maxSurfaceCubemapLayered[0]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH;
        maxSurfaceCubemapLayered[1]: CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS;
        surfaceAlignment: CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT;
        concurrentKernels: CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS;
        ECCEnabled: CU_DEVICE_ATTRIBUTE_ECC_ENABLED;
        pciBusID: CU_DEVICE_ATTRIBUTE_PCI_BUS_ID;
        pciDeviceID: CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID;
        pciDomainID: CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID;
        tccDriver: CU_DEVICE_ATTRIBUTE_TCC_DRIVER;
        asyncEngineCount: CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT;
        unifiedAddressing: CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
        memoryBusWidth: CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH;
        l2CacheSize: CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        persistingL2CacheMaxSize: CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE;
        maxThreadsPerMultiProcessor: CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR;
        streamPrioritiesSupported: CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED;
        globalL1CacheSupported: CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED;
        localL1CacheSupported: CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED;
        sharedMemPerMultiprocessor: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        regsPerMultiprocessor: CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR;
        managedMemory: CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
        isMultiGpuBoard: CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD;
        multiGpuBoardGroupID: CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID;
        hostNativeAtomicSupported: CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED;
        pageableMemoryAccess: CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
        concurrentManagedAccess: CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        computePreemptionSupported: CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED;
        canUseHostPointerForRegisteredMem: CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        cooperativeLaunch: CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH;
        sharedMemPerBlockOptin: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        pageableMemoryAccessUsesHostPageTables:
            CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
        directManagedMemAccessFromHost: CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST;
        maxBlocksPerMultiProcessor: CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR;
        accessPolicyMaxWindowSize: CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE;
        reservedSharedMemPerBlock: CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK;
        hostRegisterSupported: CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
        sparseCudaArraySupported: CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED;
        hostRegisterReadOnlySupported: CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        timelineSemaphoreInteropSupported: CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED;
        memoryPoolsSupported: CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        gpuDirectRDMASupported: CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED;
        gpuDirectRDMAFlushWritesOptions: CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS;
        gpuDirectRDMAWritesOrdering: CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
        memoryPoolSupportedHandleTypes: CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES;
        deferredMappingCudaArraySupported: CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED;
        ipcEventSupported: CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED;
        clusterLaunch: CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH;
        unifiedFunctionPointers: CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS;
    }
    // Not in CUDA 13.
    #[cfg(feature = "cuda-12")]
    fill! {
        clockRate: CU_DEVICE_ATTRIBUTE_CLOCK_RATE;
        deviceOverlap: CU_DEVICE_ATTRIBUTE_GPU_OVERLAP;
        kernelExecTimeoutEnabled: CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT;
        computeMode: CU_DEVICE_ATTRIBUTE_COMPUTE_MODE;
        maxTexture1DLinear: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH;
        memoryClockRate: CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE;
        singleToDoublePrecisionPerfRatio: CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO;
        cooperativeMultiDeviceLaunch: CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH;
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

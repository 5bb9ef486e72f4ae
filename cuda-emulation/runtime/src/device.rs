//! Devices, their limits, peer access between them, and the last error.

use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::{CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUlimit, CUmemoryPool};
use cudarc::runtime::sys::{cudaError, cudaFuncCache, cudaLimit};

use crate::context::{self, bind};
use crate::driver::get;
use crate::status::{LAST, Status, put};

const INIT_DEVICE_FLAGS_ARE_VALID: c_uint = 1;
/// The configuration of caches and of shared memory that leaves the choice to the device.
const NO_PREFERENCE: c_uint = 0;

// The limits that programs pass have the driver's numbers.
const _: () = assert!(CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE as u32 == cudaLimit::cudaLimitPrintfFifoSize as u32);

/// Returns and clears the thread's last error, even an error that made the context unusable: the next call returns that error
/// again.
#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> Status {
    // Without a driver every call fails, this one too.
    get().map_or_else(|error| error, |_| LAST.replace(Status::SUCCESS))
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> Status {
    get().map_or_else(|error| error, |_| LAST.get())
}

api! {
    fn cudaGetDeviceCount(count: *mut c_int) {
        let driver = get()?;
        let count = count.as_mut().ok_or(Status::INVALID_VALUE)?;
        driver.cuDeviceGetCount(count)?;
        if *count > 0 { Ok(()) } else { Err(cudaError::cudaErrorNoDevice.into()) }
    }

    fn cudaSetDevice(device: c_int) = context::set_device(device);

    fn cudaInitDevice(device: c_int, device_flags: c_uint, flags: c_uint) {
        let driver = get()?;
        match flags {
            0 => {}
            INIT_DEVICE_FLAGS_ARE_VALID => driver.cuDevicePrimaryCtxSetFlags_v2(device, device_flags)?,
            _ => return Err(Status::INVALID_VALUE),
        }
        context::primary(driver, device).map(drop)
    }

    fn cudaGetDevice(device: *mut c_int) = put(device, context::device()?);

    fn cudaSetDeviceFlags(flags: c_uint) = get()?.cuDevicePrimaryCtxSetFlags_v2(context::device()?, flags);

    fn cudaDeviceReset() {
        context::reset()?;
        cudaGetLastError();
        Ok(())
    }

    #[cfg(feature = "cuda-12")]
    fn cudaThreadExit() = context::reset();
    fn cudaDeviceSynchronize = bind().cuCtxSynchronize();
    #[cfg(feature = "cuda-12")]
    fn cudaThreadSynchronize = bind().cuCtxSynchronize();
    fn cudaGetDeviceFlags = bind().cuCtxGetFlags(flags: *mut c_uint);
    fn cudaDeviceGetAttribute = get().cuDeviceGetAttribute(
        value: *mut c_int, attribute: c_uint => CUdevice_attribute, device: CUdevice,
    );
    fn cudaDeviceGetPCIBusId = get().cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: CUdevice);
    fn cudaDeviceGetByPCIBusId = get().cuDeviceGetByPCIBusId(device: *mut CUdevice, id: *const c_char);
    fn cudaDeviceGetStreamPriorityRange
        = bind().cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    fn cudaDeviceGetLimit = bind().cuCtxGetLimit(value: *mut usize, limit: c_uint => CUlimit);
    fn cudaDeviceSetLimit = bind().cuCtxSetLimit(limit: c_uint => CUlimit, value: usize);
    fn cudaDeviceGetDefaultMemPool
        = get().cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    fn cudaDeviceGetMemPool = get().cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    fn cudaDeviceSetMemPool = get().cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool);
    fn cudaDeviceCanAccessPeer
        = get().cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
    fn cudaDeviceGetP2PAttribute = get().cuDeviceGetP2PAttribute(
        value: *mut c_int, attribute: c_uint => CUdevice_P2PAttribute, source: CUdevice, destination: CUdevice,
    );

    fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
        let driver = bind()?;
        driver.cuCtxEnablePeerAccess(context::primary(driver, peer)?, flags)
    }

    fn cudaDeviceDisablePeerAccess(peer: c_int) {
        let driver = bind()?;
        driver.cuCtxDisablePeerAccess(context::primary(driver, peer)?)
    }

    // The configuration of caches is a preference, which a device without kernels ignores.
    fn cudaDeviceGetCacheConfig(config: *mut c_uint) {
        bind()?;
        put(config, NO_PREFERENCE)
    }

    fn cudaDeviceSetCacheConfig(config: c_uint) {
        bind()?;
        if config <= cudaFuncCache::cudaFuncCachePreferEqual as c_uint { Ok(()) } else { Err(Status::INVALID_VALUE) }
    }

    fn cudaDeviceGetSharedMemConfig(config: *mut c_uint) = cudaDeviceGetCacheConfig(config).result();
    fn cudaDeviceSetSharedMemConfig(_config: c_uint) = bind().map(drop);
}

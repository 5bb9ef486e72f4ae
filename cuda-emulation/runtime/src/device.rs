//! Devices, their limits, and peer access between them.

use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::CUlimit;
use cudarc::runtime::sys::{cudaError, cudaFuncCache, cudaMemPool_t};

use crate::context;
use crate::driver;
use crate::last_error;
use crate::status::Status;

/// Flags of `cudaInitDevice`: that the device flags are given.
const INIT_DEVICE_FLAGS_ARE_VALID: c_uint = 1;
/// The configurations of caches and shared memory that leave the choice to the device.
const NO_PREFERENCE: c_uint = 0;

api! {
    fn cudaGetDeviceCount(count: *mut c_int) {
        let driver = driver::get()?;
        let count = count.as_mut().ok_or(Status::INVALID_VALUE)?;
        driver.cuDeviceGetCount(count)?;
        if *count > 0 { Ok(()) } else { Err(cudaError::cudaErrorNoDevice.into()) }
    }

    fn cudaSetDevice(device: c_int) {
        context::set_device(device)
    }

    fn cudaInitDevice(device: c_int, device_flags: c_uint, flags: c_uint) {
        let driver = driver::get()?;
        match flags {
            0 => {}
            INIT_DEVICE_FLAGS_ARE_VALID => driver.cuDevicePrimaryCtxSetFlags_v2(device, device_flags)?,
            _ => return Err(Status::INVALID_VALUE),
        }
        context::primary(driver, device).map(drop)
    }

    fn cudaGetDevice(device: *mut c_int) {
        let current = context::device()?;
        *device.as_mut().ok_or(Status::INVALID_VALUE)? = current;
        Ok(())
    }

    fn cudaSetDeviceFlags(flags: c_uint) {
        driver::get()?.cuDevicePrimaryCtxSetFlags_v2(context::device()?, flags)
    }

    fn cudaGetDeviceFlags(flags: *mut c_uint) {
        context::bind()?.cuCtxGetFlags(flags)
    }

    fn cudaDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) {
        driver::get()?.cuDeviceGetAttribute(value, attribute, device)
    }

    fn cudaDeviceSynchronize() {
        context::bind()?.cuCtxSynchronize()
    }

    fn cudaDeviceReset() {
        context::reset()?;
        last_error::clear();
        Ok(())
    }

    #[cfg(feature = "cuda-12")]
    fn cudaThreadSynchronize() {
        context::bind()?.cuCtxSynchronize()
    }

    #[cfg(feature = "cuda-12")]
    fn cudaThreadExit() {
        context::reset()
    }

    fn cudaDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int) {
        driver::get()?.cuDeviceGetPCIBusId(id, length, device)
    }

    fn cudaDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char) {
        driver::get()?.cuDeviceGetByPCIBusId(device, id)
    }

    fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        context::bind()?.cuCtxGetStreamPriorityRange(least, greatest)
    }

    fn cudaDeviceGetLimit(value: *mut usize, limit: c_uint) {
        context::bind()?.cuCtxGetLimit(value, limit)
    }

    fn cudaDeviceSetLimit(limit: c_uint, value: usize) {
        context::bind()?.cuCtxSetLimit(limit, value)
    }

    fn cudaDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        driver::get()?.cuDeviceCanAccessPeer(can, device, peer)
    }

    fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
        let driver = context::bind()?;
        driver.cuCtxEnablePeerAccess(context::primary(driver, peer)?, flags)
    }

    fn cudaDeviceDisablePeerAccess(peer: c_int) {
        let driver = context::bind()?;
        driver.cuCtxDisablePeerAccess(context::primary(driver, peer)?)
    }

    fn cudaDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, source: c_int, destination: c_int) {
        driver::get()?.cuDeviceGetP2PAttribute(value, attribute, source, destination)
    }

    fn cudaDeviceGetDefaultMemPool(pool: *mut cudaMemPool_t, device: c_int) {
        driver::get()?.cuDeviceGetDefaultMemPool(pool.cast(), device)
    }

    fn cudaDeviceGetMemPool(pool: *mut cudaMemPool_t, device: c_int) {
        driver::get()?.cuDeviceGetMemPool(pool.cast(), device)
    }

    fn cudaDeviceSetMemPool(device: c_int, pool: cudaMemPool_t) {
        driver::get()?.cuDeviceSetMemPool(device, pool.cast())
    }

    // How kernels share a cache is a preference, which a device without kernels may ignore.
    fn cudaDeviceGetCacheConfig(config: *mut c_uint) {
        context::bind()?;
        *config.as_mut().ok_or(Status::INVALID_VALUE)? = NO_PREFERENCE;
        Ok(())
    }

    fn cudaDeviceSetCacheConfig(config: c_uint) {
        context::bind()?;
        if config <= cudaFuncCache::cudaFuncCachePreferEqual as c_uint { Ok(()) } else { Err(Status::INVALID_VALUE) }
    }

    fn cudaDeviceGetSharedMemConfig(config: *mut c_uint) {
        context::bind()?;
        *config.as_mut().ok_or(Status::INVALID_VALUE)? = NO_PREFERENCE;
        Ok(())
    }

    fn cudaDeviceSetSharedMemConfig(_config: c_uint) {
        context::bind().map(drop)
    }
}

// The limits that programs name have the driver's numbers.
const _: () = assert!(
    CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE as u32
        == cudarc::runtime::sys::cudaLimit::cudaLimitPrintfFifoSize as u32
);

//! Versions, and the driver's functions by name.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::driver;
use crate::status::{Result, Status, put};

/// The CUDA version that has the functions exported here.
const VERSION: c_int = if cfg!(feature = "cuda-13") { 13050 } else { 12090 };

/// Flag of `cuGetProcAddress` for functions whose null stream is the thread's own.
const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// Returns the version whose functions a program gets if it names none: this one, or an older driver's.
fn version() -> Result<c_uint> {
    let mut driver = 0;
    // SAFETY: a variable can be written.
    unsafe { driver::get()?.cuDriverGetVersion(&raw mut driver)? };
    Ok(driver.min(VERSION).unsigned_abs())
}

api! {
    fn cudaRuntimeGetVersion(version: *mut c_int) = put(version, VERSION);

    // Returns 0 without a driver.
    fn cudaDriverGetVersion(version: *mut c_int) {
        let version = version.as_mut().ok_or(Status::INVALID_VALUE)?;
        *version = 0;
        driver::loaded().map_or(Ok(()), |driver| driver.cuDriverGetVersion(version))
    }

    fn cudaGetDriverEntryPoint(
        symbol: *const c_char, function: *mut *mut c_void, flags: c_ulonglong, status: *mut c_uint,
    ) = cudaGetDriverEntryPointByVersion(symbol, function, version()?, flags, status).result();

    fn cudaGetDriverEntryPoint_ptsz(
        symbol: *const c_char, function: *mut *mut c_void, flags: c_ulonglong, status: *mut c_uint,
    ) = cudaGetDriverEntryPointByVersion_ptsz(symbol, function, version()?, flags, status).result();

    fn cudaGetDriverEntryPointByVersion(
        symbol: *const c_char, function: *mut *mut c_void, version: c_uint, flags: c_ulonglong, status: *mut c_uint,
    ) {
        if symbol.is_null() || function.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let version = c_int::try_from(version).map_err(|_| Status::INVALID_VALUE)?;
        driver::get()?.cuGetProcAddress_v2(symbol, function, version, flags, status)
    }

    fn cudaGetDriverEntryPointByVersion_ptsz(
        symbol: *const c_char, function: *mut *mut c_void, version: c_uint, flags: c_ulonglong, status: *mut c_uint,
    ) {
        let flags = if flags == 0 { PER_THREAD_DEFAULT_STREAM } else { flags };
        cudaGetDriverEntryPointByVersion(symbol, function, version, flags, status).result()
    }

    // No profiler sees anything.
    fn cudaProfilerStart() = driver::get().map(drop);
    fn cudaProfilerStop() = driver::get().map(drop);
}

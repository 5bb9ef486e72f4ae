//! NVIDIA GPUs of this machine.
#![allow(unsafe_code)]

use std::error::Error;

use cudarc::driver::CudaContext;

/// The user-mode library of the NVIDIA driver.
pub(crate) const DRIVER: &str = "libcuda.so.1";

/// Returns the number of GPUs, at least one, or the reason why there is none.
pub(crate) fn count() -> Result<usize, String> {
    load_driver()?;
    match CudaContext::device_count() {
        Ok(count @ 1..) => Ok(count as usize),
        Ok(_) => Err("the NVIDIA driver reports no GPU".into()),
        Err(error) => Err(format!("the NVIDIA driver cannot be used: {error}")),
    }
}

/// Loads the driver. Must succeed before any use of cudarc, which panics without a driver.
pub(crate) fn load_driver() -> Result<(), String> {
    // SAFETY: loading only runs the driver's initializers, which NVIDIA makes for any program.
    match unsafe { libloading::Library::new(DRIVER) } {
        Ok(library) => {
            // Never unloaded: it starts threads.
            std::mem::forget(library);
            Ok(())
        }
        Err(error) => Err(error.source().map_or_else(|| error.to_string(), ToString::to_string)),
    }
}

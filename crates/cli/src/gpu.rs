//! Whether there is an NVIDIA GPU to work on.
#![allow(unsafe_code)]

use std::error::Error;

use cudarc::driver::CudaContext;

/// The NVIDIA driver's user part.
pub(crate) const DRIVER: &str = "libcuda.so.1";

/// How many GPUs there are, at least one; or why there is none to use.
pub(crate) fn count() -> Result<usize, String> {
    load_driver()?;
    match CudaContext::device_count() {
        Ok(count @ 1..) => Ok(count as usize),
        Ok(_) => Err("the NVIDIA driver sees no GPU".into()),
        Err(error) => Err(format!("the NVIDIA driver cannot be used: {error}")),
    }
}

/// Whether the driver can be loaded; has to be known before cudarc is used, which panics without one.
pub(crate) fn load_driver() -> Result<(), String> {
    // SAFETY: it is the system's driver under its official name, made to be loaded by any program.
    match unsafe { libloading::Library::new(DRIVER) } {
        Ok(library) => {
            // Kept: it starts threads.
            std::mem::forget(library);
            Ok(())
        }
        Err(error) => Err(error.source().map_or_else(|| error.to_string(), ToString::to_string)),
    }
}

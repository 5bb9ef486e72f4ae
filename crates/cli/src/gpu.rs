//! NVIDIA GPUs of this machine, and what stands in for them.
#![allow(unsafe_code)]

use std::error::Error;
use std::ffi::{CStr, OsStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use cuda_common::Interface;
use cudarc::driver::CudaContext;

use crate::nccl_file::Cuda;

pub(crate) const DRIVER: &str = "libcuda.so.1";

/// Returns the number of GPUs, at least one, or the reason why there is none.
pub(crate) fn count() -> Result<usize, String> {
    load_driver()?;
    match CudaContext::device_count() {
        Ok(count @ 1..) => Ok(count as usize),
        Ok(_) => Err("the CUDA driver reports no GPU".into()),
        Err(error) => Err(format!("the CUDA driver cannot be used: {error}")),
    }
}

/// Returns the newest release of CUDA that the driver supports; `None` without a driver.
pub(crate) fn newest_cuda() -> Option<Cuda> {
    load_driver().ok()?;
    let mut code = 0;
    // SAFETY: the driver is loaded, and gets a valid place for a number.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut code) }.result().ok()?;
    let code = u32::try_from(code).ok()?;
    Some(Cuda { major: code / 1000, minor: code % 1000 / 10 })
}

/// Loads the driver. Must succeed before any use of cudarc, which panics without a driver.
pub(crate) fn load_driver() -> Result<(), String> {
    // SAFETY: loading only runs the driver's initializers, which NVIDIA makes for any program.
    let driver = unsafe { libloading::Library::new(DRIVER) };
    // Never unloaded: it starts threads.
    driver.map(std::mem::forget).map_err(|error| reason(&error))
}

/// Returns the text of the dynamic linker, if there is one.
pub(crate) fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The description of the file that [`stand_in`] returns.
pub(crate) const STAND_IN: &str = "libnccl's CUDA emulation";

/// Returns the file of the CUDA emulation if it is the driver of this process.
pub(crate) fn stand_in() -> Option<PathBuf> {
    load_driver().ok()?;
    // SAFETY: it is loaded already, so nothing of it runs.
    let driver = unsafe { libloading::os::unix::Library::new(DRIVER) }.ok()?;
    // SAFETY: only the address is used. No other driver has this symbol.
    let interface = unsafe { driver.get::<*const c_void>(Interface::SYMBOL.to_bytes_with_nul()) };
    let interface = interface.ok()?.as_raw_ptr();
    let mut information = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, and the result has room for what is found.
    if unsafe { libc::dladdr(interface, information.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr has filled it in, and has found a file, whose name is a C string: the driver is never unloaded.
    let file = unsafe { CStr::from_ptr(information.assume_init().dli_fname) };
    Some(OsStr::from_bytes(file.to_bytes()).into())
}

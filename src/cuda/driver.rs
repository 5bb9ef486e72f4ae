//! The functions of CUDA's driver.

use std::ffi::{CStr, c_void};

/// Returns a function of the CUDA driver, if the process has loaded it.
#[cfg(target_os = "linux")]
pub(super) fn driver_function(name: &CStr) -> Option<*const c_void> {
    // The driver is never unloaded.
    let function = crate::dynamic_linker::Scope::loaded(c"libcuda.so.1")?.address(name);
    (!function.is_null()).then_some(function)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn driver_function(_: &CStr) -> Option<*const c_void> {
    None
}

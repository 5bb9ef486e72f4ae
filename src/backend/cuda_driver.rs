//! The functions of CUDA's driver, which NCCL loads; this crate neither links nor loads CUDA.

use std::ffi::c_void;

/// Returns a function of the CUDA driver, if the process has loaded it.
#[cfg(target_os = "linux")]
pub(super) fn driver_function(name: &std::ffi::CStr) -> Option<*mut c_void> {
    use std::ffi::{c_char, c_int};

    const RTLD_LAZY: c_int = 1;
    const RTLD_NOLOAD: c_int = 4;
    unsafe extern "C" {
        fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
        fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    // SAFETY: C strings; loads nothing. The handle is never closed, and neither is the driver.
    let function = unsafe {
        let driver = dlopen(c"libcuda.so.1".as_ptr(), RTLD_LAZY | RTLD_NOLOAD);
        if driver.is_null() { driver } else { dlsym(driver, name.as_ptr()) }
    };
    (!function.is_null()).then_some(function)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn driver_function(_: &std::ffi::CStr) -> Option<*mut c_void> {
    None
}

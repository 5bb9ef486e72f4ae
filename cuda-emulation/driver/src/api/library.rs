//! Initialisation, version and error codes.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

use cudarc::driver::sys::CUresult;

use super::put;
use crate::driver::Driver;
use crate::error::{self, Result};

/// The version of CUDA whose driver this stands in for.
pub(super) const VERSION: c_int = 13000;

/// Called after all functions of `atexit` and the destructors of static objects, which may yet destroy what is left.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    // Not in a forked child, which has no driver.
    if let Ok(driver) = Driver::get() {
        driver.end();
    }
}

unsafe fn put_text(text: Option<&'static CStr>, out: *mut *const c_char) -> Result<()> {
    // SAFETY: as the callers say.
    unsafe { put(out, text.map_or(ptr::null(), CStr::as_ptr))? };
    text.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

api! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        Driver::init()
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        put(version, VERSION)
    }

    fn cuGetErrorName(error: c_uint, name: *mut *const c_char) {
        put_text(error::name(error), name)
    }

    fn cuGetErrorString(error: c_uint, text: *mut *const c_char) {
        put_text(error::description(error), text)
    }
}

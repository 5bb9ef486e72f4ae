//! Initialisation, version and error codes.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

use cudarc::driver::sys::CUresult::*;

use super::put;
use crate::driver::Driver;
use crate::error::{self, Result, ensure};

pub(super) const VERSION: c_int = 13000;

/// Called after all `atexit` functions and static destructors, which may free what is left.
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
    ensure(text.is_some(), CUDA_ERROR_INVALID_VALUE)
}

api! {
    fn cuInit(flags: c_uint) {
        ensure(flags == 0, CUDA_ERROR_INVALID_VALUE)?;
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

//! Initialisation, version and error codes.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

use cudarc::driver::sys::CUresult;

use super::{answer, put};
use crate::driver::Driver;
use crate::error;

/// The version of CUDA whose driver this stands in for.
pub(super) const VERSION: c_int = 13000;

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> CUresult {
    let init = || {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        Driver::init()
    };
    answer(init())
}

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

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    // SAFETY: CUDA's contract: valid for a write.
    answer(unsafe { put(version, VERSION) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: c_uint, name: *mut *const c_char) -> CUresult {
    // SAFETY: CUDA's contract: valid for a write.
    unsafe { put_text(error::name(error), name) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: c_uint, text: *mut *const c_char) -> CUresult {
    // SAFETY: CUDA's contract: valid for a write.
    unsafe { put_text(error::description(error), text) }
}

unsafe fn put_text(text: Option<&'static CStr>, out: *mut *const c_char) -> CUresult {
    // SAFETY: as the callers say.
    let stored = unsafe { put(out, text.map_or(ptr::null(), CStr::as_ptr)) };
    answer(stored.and(text.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)))
}

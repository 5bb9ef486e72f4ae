//! Initialisation, version and error codes.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;
use std::sync::Once;

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
        Driver::init()?;
        static AT_EXIT: Once = Once::new();
        AT_EXIT.call_once(|| {
            // SAFETY: the function keeps the rules of any other, and this library is never unloaded: its threads run.
            let _ = unsafe { libc::atexit(end) };
        });
        Ok(())
    };
    answer(init())
}

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

//! Initialization, version, error codes, and private tables of functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::{mem, ptr};

use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::CUresult::*;

use super::{nvidias_runtime, put, say_unsupported};
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

/// The table without which CUPTI fails immediately.
const OF_CUPTI: [u8; 16] =
    [0x7c, 0xb6, 0x3f, 0x9b, 0x9c, 0xa4, 0x8e, 0x42, 0xa4, 0x84, 0xbe, 0xb6, 0x6e, 0x6a, 0xed, 0x7f];

/// A table, as far as known: its length in bytes, including this number, and functions.
#[repr(C)]
struct Table {
    length: usize,
    functions: [extern "C" fn() -> CUresult; 511],
}

/// A table whose length says that it has no functions.
///
/// CUPTI 13.2 checks the length. Without a table, its search for an error text recurses until the stack overflows. CUPTI 12 does
/// not check, and calls a function. Both then miss other tables, and return an error.
static EMPTY: Table = Table { length: mem::size_of::<usize>(), functions: [refuse; 511] };

extern "C" fn refuse() -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

api! {
    fn cuInit(flags: c_uint) {
        ensure(flags == 0, CUDA_ERROR_INVALID_VALUE)?;
        Driver::init()
    }

    fn cuDriverGetVersion(version: *mut c_int) = put(version, VERSION);
    fn cuGetErrorName(error: c_uint, name: *mut *const c_char) = put_text(error::name(error), name);
    fn cuGetErrorString(error: c_uint, text: *mut *const c_char) = put_text(error::description(error), text);

    fn cuGetExportTable(out: *mut *const c_void, id: *const [u8; 16]) {
        let id = id.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if *id == OF_CUPTI {
            return put(out, (&raw const EMPTY).cast());
        }
        if !nvidias_runtime::is_known() {
            say_unsupported("cuGetExportTable, of which NVIDIA's libraries, such as CUPTI, need private functions");
        }
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
}

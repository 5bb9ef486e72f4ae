//! Initialization, version, error codes, functions by name and CUDA version, and private tables of functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::{mem, ptr};

use cuda_common::report_unsupported;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUdriverProcAddressQueryResult as Query, CUresult};

use super::{nvidias_runtime, put, put_if_wanted};
use crate::driver::Driver;
use crate::error::{self, Result, ensure};

pub(super) const VERSION: c_int = 13000;

/// Called after all `atexit` functions and static destructors, because these may free what is left.
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

/// The UUID of the table without which CUPTI fails immediately.
const OF_CUPTI: [u8; 16] =
    [0x7c, 0xb6, 0x3f, 0x9b, 0x9c, 0xa4, 0x8e, 0x42, 0xa4, 0x84, 0xbe, 0xb6, 0x6e, 0x6a, 0xed, 0x7f];

/// A table, as far as its format is known: its length in bytes, including this field, and functions.
#[repr(C)]
struct Table {
    length: usize,
    functions: [extern "C" fn() -> CUresult; 511],
}

/// A table whose length says that it has no functions.
///
/// CUPTI 13.2 checks the length. Without a table, its search for an error text recurses until the stack overflows. CUPTI 12 does
/// not check the length, and calls a function. Both versions then miss other tables, and return an error.
static EMPTY: Table = Table { length: mem::size_of::<usize>(), functions: [refuse; 511] };

extern "C" fn refuse() -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

/// The functions of functions.txt.
mod table {
    use std::ffi::c_uint;

    include!(concat!(env!("OUT_DIR"), "/addresses.rs"));
}

/// Finds the function that a name means in a CUDA version. Unsupported functions are found too: a program that looks one up does not
/// always call it.
///
/// # Errors
/// Returns an error if no function has this name, or if the function does not exist in this version.
fn find(name: &str, version: c_int) -> std::result::Result<*mut c_void, Query> {
    let index = table::FUNCTIONS.binary_search_by_key(&name, |(base, _)| base);
    let (_, versions) = table::FUNCTIONS[index.map_err(|_| Query::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)?];
    // As on a GPU, -1 means the newest version.
    let version = (version as c_uint).min(VERSION as c_uint);
    let found = versions.iter().rev().find(|(since, _)| *since <= version);
    let (_, function) = found.ok_or(Query::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)?;
    Ok(*function as *mut c_void)
}

/// Returns the address of a function, or null if there is none, and the status of the search.
///
/// # Safety
/// `name` must be null or a C string.
unsafe fn look_up(name: *const c_char, version: c_int, flags: u64) -> Result<(*mut c_void, Query)> {
    const PER_THREAD_DEFAULT_STREAM: u64 = 2;
    const ALL_FLAGS: u64 = 3;
    let is_valid = !name.is_null() && flags <= ALL_FLAGS && version <= VERSION;
    ensure(is_valid, CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: the caller guarantees that it is a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    if flags & PER_THREAD_DEFAULT_STREAM != 0 {
        nvidias_runtime::report();
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(match find(name, version) {
        Ok(found) => (found, Query::CU_GET_PROC_ADDRESS_SUCCESS),
        Err(result) => (ptr::null_mut(), result),
    })
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
            report_unsupported("cuGetExportTable, of which NVIDIA's libraries, such as CUPTI, need private functions");
        }
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) {
        let (found, _) = look_up(name, version, flags)?;
        // This version has no status, and leaves the pointer unchanged.
        ensure(!found.is_null(), CUDA_ERROR_NOT_FOUND)?;
        put(out, found)
    }

    fn cuGetProcAddress_v2(
        name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_uint,
    ) {
        let (found, result) = look_up(name, version, flags)?;
        put(out, found)?;
        put_if_wanted(status, result as c_uint);
        Ok(())
    }
}

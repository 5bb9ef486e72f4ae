//! `cuGetProcAddress`: functions by name and CUDA version.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys::{CUdriverProcAddressQueryResult as Query, CUresult};

use super::library::VERSION;
use super::{nvidias_runtime, put, put_if_wanted};
use crate::error::{Result, ensure};

/// The functions of functions.txt.
mod table {
    use std::ffi::c_uint;

    include!(concat!(env!("OUT_DIR"), "/addresses.rs"));
}

/// Finds the function that a name means in a CUDA version. Unsupported functions are found too: a program that looks one up does not
/// always call it.
///
/// # Errors
///
/// There is no function of this name, or none in this version.
fn find(name: &str, version: c_int) -> std::result::Result<*mut c_void, Query> {
    let index = table::FUNCTIONS.binary_search_by_key(&name, |(base, _)| base);
    let (_, versions) = table::FUNCTIONS[index.map_err(|_| Query::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)?];
    // As on a GPU, -1 is newer than every version.
    let version = version as c_uint;
    let found = versions.iter().rev().find(|(since, _)| *since <= version);
    let (_, function) = found.ok_or(Query::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)?;
    Ok(*function as *mut c_void)
}

/// Returns the address of a function, or null if there is none, and the status of the search.
///
/// # Safety
///
/// `name` is null, which is an error, or a C string.
unsafe fn look_up(name: *const c_char, version: c_int, flags: u64) -> Result<(*mut c_void, Query)> {
    const PER_THREAD_DEFAULT_STREAM: u64 = 2;
    const ALL_FLAGS: u64 = 3;
    let is_valid = !name.is_null() && flags <= ALL_FLAGS && version <= VERSION;
    ensure(is_valid, CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: the caller guarantees that it is a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if flags & PER_THREAD_DEFAULT_STREAM != 0 {
        nvidias_runtime::report();
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(match find(name, version) {
        Ok(found) => (found, Query::CU_GET_PROC_ADDRESS_SUCCESS),
        Err(result) => (ptr::null_mut(), result),
    })
}

api! {
    fn cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) {
        let (found, _) = look_up(name, version, flags)?;
        // This version has no status, and leaves the pointer unchanged.
        ensure(!found.is_null(), CUresult::CUDA_ERROR_NOT_FOUND)?;
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

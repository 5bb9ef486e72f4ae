//! Functions by name.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys::{CUdriverProcAddressQueryResult as Query, CUresult};

use super::library::VERSION;
use super::{Functions, nvidias_runtime, put};
use crate::error::Result;

/// The functions of all modules.
const ALL: &[Functions] = &[
    super::context::FUNCTIONS,
    super::copy::FUNCTIONS,
    super::device::FUNCTIONS,
    super::event::FUNCTIONS,
    super::export_table::FUNCTIONS,
    super::fill::FUNCTIONS,
    super::graph::FUNCTIONS,
    super::interprocess::FUNCTIONS,
    super::library::FUNCTIONS,
    super::memory::FUNCTIONS,
    super::pointer::FUNCTIONS,
    super::pool::FUNCTIONS,
    super::stream::FUNCTIONS,
    super::unsupported::FUNCTIONS,
    super::user_object::FUNCTIONS,
    super::virtual_memory::FUNCTIONS,
    FUNCTIONS,
];

/// Functions with several versions, and the release of CUDA in which each became the one that the name means.
const VERSIONS: &[(&str, &[(c_int, &str)])] = &[
    ("cuCtxCreate", &[(3020, "cuCtxCreate_v2"), (11040, "cuCtxCreate_v3"), (12050, "cuCtxCreate_v4")]),
    ("cuCtxGetDevice", &[(2000, "cuCtxGetDevice"), (13000, "cuCtxGetDevice_v2")]),
    ("cuCtxSynchronize", &[(2000, "cuCtxSynchronize"), (13000, "cuCtxSynchronize_v2")]),
    ("cuDeviceGetUuid", &[(9020, "cuDeviceGetUuid"), (11040, "cuDeviceGetUuid_v2")]),
    ("cuEventElapsedTime", &[(2000, "cuEventElapsedTime"), (12080, "cuEventElapsedTime_v2")]),
    ("cuGetProcAddress", &[(11030, "cuGetProcAddress"), (12000, "cuGetProcAddress_v2")]),
    ("cuMemAdvise", &[(8000, "cuMemAdvise"), (12020, "cuMemAdvise_v2")]),
    ("cuMemPrefetchAsync", &[(8000, "cuMemPrefetchAsync"), (12020, "cuMemPrefetchAsync_v2")]),
    ("cuStreamGetCaptureInfo", &[(11030, "cuStreamGetCaptureInfo_v2"), (12030, "cuStreamGetCaptureInfo_v3")]),
];

/// The first release that names can be asked of.
const FIRST_RELEASE: c_int = 2000;

/// Finds the function that a name means in a release of CUDA. Those that are not supported are found too, as a program
/// that asks for them does not always call them.
///
/// # Errors
/// The name has no function, or none in this release.
fn find(name: &str, version: c_int) -> std::result::Result<*mut c_void, Query> {
    let exact = |name: &str| {
        let mut all = ALL.iter().copied().flatten();
        all.find(|(own, _)| *own == name).ok_or(Query::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
    };
    // A name stands for all versions of a function.
    let is_version = |(_, number): (&str, &str)| number.parse::<u8>().is_ok();
    if name.rsplit_once("_v").is_some_and(is_version) {
        return Err(Query::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    }
    let versions = VERSIONS.iter().find(|(base, _)| *base == name);
    let found = match versions {
        Some((_, versions)) => {
            let found = versions.iter().rev().find(|(since, _)| *since <= version);
            exact(found.ok_or(Query::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)?.1)
        }
        None => {
            exact(name).or_else(|_| exact(&format!("{name}_v2"))).or_else(|_| exact(&format!("{name}_v3")))
        }
    };
    let (_, function) = found?;
    if version < FIRST_RELEASE {
        return Err(Query::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    }
    Ok(function.cast_mut())
}

/// Finds a function; returns its address, which is null if there is none, and what became of the search.
///
/// # Safety
///
/// `name` is null, which is an error, or a C string.
unsafe fn look_up(name: *const c_char, version: c_int, flags: u64) -> Result<(*mut c_void, Query)> {
    const PER_THREAD_DEFAULT_STREAM: u64 = 2;
    const ALL_FLAGS: u64 = 3;
    if name.is_null() || flags > ALL_FLAGS || version > VERSION {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller promises that it is a C string.
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
        if found.is_null() {
            // It cannot say what became of the search, and leaves the pointer alone.
            return Err(CUresult::CUDA_ERROR_NOT_FOUND);
        }
        put(out, found)
    }

    fn cuGetProcAddress_v2(
        name: *const c_char,
        out: *mut *mut c_void,
        version: c_int,
        flags: u64,
        status: *mut c_uint,
    ) {
        let (found, result) = look_up(name, version, flags)?;
        put(out, found)?;
        if status.is_null() { Ok(()) } else { put(status, result as c_uint) }
    }
}

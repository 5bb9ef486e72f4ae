//! cuBLAS.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::shared::Handles;
use cuda_common::report_unsupported;

/// The version that has the functions exported here: major, minor, patch.
const VERSION: [c_int; 3] = if cfg!(feature = "cublas-13") { [13, 2, 0] } else { [12, 9, 0] };

type Status = c_int;

const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1;
const INVALID_VALUE: Status = 7;
const NOT_SUPPORTED: Status = 15;

#[derive(Default)]
struct Context {
    stream: usize,
    pointer_mode: c_int,
    math_mode: c_int,
    atomics_mode: c_int,
    sm_count_target: c_int,
}

static CONTEXTS: Handles<Context> = Handles::new();

/// Writes a result.
///
/// # Safety
/// `out` must be null or valid for a write.
unsafe fn put<T>(out: *mut T, value: T) -> Status {
    if out.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: as the caller guarantees.
    unsafe { out.write(value) };
    SUCCESS
}

fn set(handle: *mut c_void, change: impl FnOnce(&mut Context)) -> Status {
    CONTEXTS.with(handle, change).map_or(NOT_INITIALIZED, |()| SUCCESS)
}

/// # Safety
/// As for [`put`].
unsafe fn get<T>(handle: *mut c_void, out: *mut T, find: impl FnOnce(&mut Context) -> T) -> Status {
    // SAFETY: as the caller guarantees.
    CONTEXTS.with(handle, find).map_or(NOT_INITIALIZED, |value| unsafe { put(out, value) })
}

fn not_supported(function: &'static str) -> Status {
    report_unsupported(function);
    NOT_SUPPORTED
}

// The unsupported functions of cublas.txt.
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasCreate_v2(out: *mut *mut c_void) -> Status {
    if out.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: cuBLAS's contract: valid for a write.
    unsafe { put(out, CONTEXTS.create(Context::default())) }
}

#[unsafe(no_mangle)]
extern "C" fn cublasDestroy_v2(handle: *mut c_void) -> Status {
    CONTEXTS.destroy(handle).map_or(NOT_INITIALIZED, |_| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetStream_v2(handle: *mut c_void, stream: *mut c_void) -> Status {
    set(handle, |context| context.stream = stream.addr())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetStream_v2(handle: *mut c_void, stream: *mut *mut c_void) -> Status {
    // SAFETY: cuBLAS's contract: valid for a write.
    unsafe { get(handle, stream, |context| std::ptr::without_provenance_mut(context.stream)) }
}

// The memory is never used.
#[unsafe(no_mangle)]
extern "C" fn cublasSetWorkspace_v2(handle: *mut c_void, _memory: *mut c_void, _length: usize) -> Status {
    set(handle, |_| ())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetVersion_v2(_handle: *mut c_void, version: *mut c_int) -> Status {
    // SAFETY: cuBLAS's contract: valid for a write.
    unsafe { put(version, VERSION[0] * 10000 + VERSION[1] * 100 + VERSION[2]) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetProperty(which: c_uint, value: *mut c_int) -> Status {
    // SAFETY: cuBLAS's contract: valid for a write.
    VERSION.get(which as usize).map_or(INVALID_VALUE, |number| unsafe { put(value, *number) })
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusName(code: Status) -> *const c_char {
    let name: &CStr = match code {
        SUCCESS => c"CUBLAS_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED",
        _ => c"a code that the emulated cuBLAS does not return",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusString(code: Status) -> *const c_char {
    cublasGetStatusName(code)
}

macro_rules! settings {
    ($($set:ident $get:ident $setting:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $set(handle: *mut c_void, value: c_int) -> Status {
            set(handle, |context| context.$setting = value)
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $get(handle: *mut c_void, value: *mut c_int) -> Status {
            // SAFETY: cuBLAS's contract: valid for a write.
            unsafe { get(handle, value, |context| context.$setting) }
        }
    )*};
}

settings! {
    cublasSetPointerMode_v2 cublasGetPointerMode_v2 pointer_mode;
    cublasSetMathMode cublasGetMathMode math_mode;
    cublasSetAtomicsMode cublasGetAtomicsMode atomics_mode;
    cublasSetSmCountTarget cublasGetSmCountTarget sm_count_target;
}

//! Unsupported functions, and kernels: a program that contains kernels starts, and launching one is an error.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use cuda_common::report_as;
use cudarc::runtime::sys::cudaChannelFormatDesc;

use crate::status::{Status, record};

/// Reports on stderr, once for each function, that it is not supported, and returns the error.
pub(crate) fn report(function: &'static str, reason: &str) -> Status {
    report_as(function, &format!("libnccl's libcudart: {function} is not supported{reason}"));
    Status::NOT_SUPPORTED
}

fn not_supported(function: &'static str) -> Status {
    record(Err(report(function, "")))
}

// The unsupported functions of functions.txt.
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

// Compilers call the functions from here on for the kernels and variables of a program: most of them before main. The arguments are
// ignored.

/// Returns a handle that compiled code only passes back.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary() -> *mut *mut c_void {
    without_provenance_mut(8)
}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule() -> c_char {
    0
}

macro_rules! ignored {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() {}
    )*};
}

ignored! {
    __cudaRegisterFatBinaryEnd __cudaRegisterFunction __cudaRegisterHostVar __cudaRegisterManagedVar
    __cudaRegisterUnifiedTable __cudaRegisterVar __cudaUnregisterFatBinary
}

/// Returns 1, so that the kernel is not launched.
#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration() -> c_uint {
    not_supported("launching a kernel");
    1
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPopCallConfiguration() -> Status {
    Status::NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn __cudaGetKernel(kernel: *mut *mut c_void, _symbol: *const c_void) -> Status {
    // SAFETY: the caller passes null or an address that is valid for a write.
    if let Some(kernel) = unsafe { kernel.as_mut() } {
        *kernel = null_mut();
    }
    Status::NOT_SUPPORTED
}

/// `cudaChannelFormatDesc`, whose kind may be any number.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ChannelFormat {
    bits: [c_int; 4],
    kind: c_uint,
}

const _: () = assert!(size_of::<ChannelFormat>() == size_of::<cudaChannelFormatDesc>());

#[unsafe(no_mangle)]
extern "C" fn cudaCreateChannelDesc(x: c_int, y: c_int, z: c_int, w: c_int, kind: c_uint) -> ChannelFormat {
    ChannelFormat { bits: [x, y, z, w], kind }
}

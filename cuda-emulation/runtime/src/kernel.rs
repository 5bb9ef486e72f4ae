//! Kernels, which are not supported: programs that contain some start, and launching one is an error.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use cudarc::runtime::sys::cudaChannelFormatDesc;

use crate::status::Status;

/// The handle of every module: there are no modules, and compilers only pass it back.
const MODULE: *mut *mut c_void = without_provenance_mut(8);

// What compilers call before main, for the kernels and variables of a program.

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(_binary: *mut c_void) -> *mut *mut c_void {
    MODULE
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_module: *mut *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(_module: *mut *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_module: *mut *mut c_void) -> c_char {
    0
}

macro_rules! registrations {
    ($($name:ident)*) => {$(
        // The arguments, which differ, are left where the caller put them.
        #[unsafe(no_mangle)]
        extern "C" fn $name() {}
    )*};
}

registrations! {
    __cudaRegisterFunction __cudaRegisterHostVar __cudaRegisterManagedVar __cudaRegisterUnifiedTable __cudaRegisterVar
}

/// A number of blocks or threads.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(dead_code, reason = "only passed by value")]
struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// Returns 1: the kernel must not be launched.
#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(
    _grid: Dim3,
    _block: Dim3,
    _shared: usize,
    _stream: *mut c_void,
) -> c_uint {
    crate::last_error::record(Err(crate::driver::not_supported("launching a kernel", "")));
    1
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPopCallConfiguration(
    _grid: *mut Dim3,
    _block: *mut Dim3,
    _shared: *mut usize,
    _stream: *mut c_void,
) -> Status {
    Status::NOT_SUPPORTED
}

/// The format of a texture's elements, `cudaChannelFormatDesc`; its kind may be any number.
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

/// Returns null: no function is found by its symbol.
#[unsafe(no_mangle)]
extern "C" fn __cudaGetKernel(kernel: *mut *mut c_void, _symbol: *const c_void) -> Status {
    // SAFETY: the caller passes null or an address that is valid for a write.
    if let Some(kernel) = unsafe { kernel.as_mut() } {
        *kernel = null_mut();
    }
    Status::NOT_SUPPORTED
}

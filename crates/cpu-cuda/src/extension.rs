//! Functions beyond CUDA's, by which the CPU implementation of NCCL enqueues its operations.
//!
//! Whoever finds `libnccl_cuda_version` in a `libcuda.so.1` that is in the process already knows that it is this one.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};

/// Memory that no function of CUDA allocated or registered.
pub const KIND_HOST: i32 = 0;
/// Memory of a device, which programs cannot touch.
pub const KIND_DEVICE: i32 = 1;
/// Host memory that CUDA allocated or registered.
pub const KIND_PINNED: i32 = 2;
/// Memory that devices and the host share.
pub const KIND_MANAGED: i32 = 3;

/// The memory behind an address.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct libnccl_cuda_memory {
    /// One of the `KIND_` constants.
    pub kind: i32,
    /// The device of the allocation, or -1.
    pub device: i32,
    /// The address at which this process can read and write the bytes.
    pub alias: *mut c_void,
    /// The allocation's number, never used twice; 0 for memory unknown to CUDA.
    pub id: u64,
}

/// Memory that an operation reads or writes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct libnccl_cuda_access {
    /// The first byte.
    pub address: CUdeviceptr,
    /// The number of bytes.
    pub length: usize,
    /// 1 if it may write, 0 if it only reads.
    pub writes: i32,
}

/// Returns the version of these functions.
#[unsafe(no_mangle)]
pub extern "C" fn libnccl_cuda_version() -> u32 {
    1
}

/// Finds the memory behind a range of addresses, which must lie in one allocation.
///
/// # Safety
///
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnccl_cuda_resolve(
    _address: CUdeviceptr,
    _length: usize,
    _out: *mut libnccl_cuda_memory,
) -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

/// Enqueues an operation, which calls `run(data)` once, when everything before it on the stream is done.
///
/// `run` may block; other streams go on meanwhile. It is called for every operation that was accepted, even if its
/// stream or context is destroyed.
///
/// # Safety
///
/// `accesses` is valid for `count` reads, `label` is null or a C string, and `run` may be called with `data` on any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnccl_cuda_enqueue(
    _stream: CUstream,
    _accesses: *const libnccl_cuda_access,
    _count: usize,
    _label: *const c_char,
    _run: Option<unsafe extern "C" fn(data: *mut c_void)>,
    _data: *mut c_void,
) -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

/// Makes an error sticky: all later calls in the context of the stream return it.
#[unsafe(no_mangle)]
pub extern "C" fn libnccl_cuda_fail(_stream: CUstream, _error: CUresult) {}

/// Makes device memory of the current context out of a memory file; `cuMemFree` frees it.
///
/// # Safety
///
/// `memfd` is an open memory file of at least `length` bytes, and `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnccl_cuda_alloc_shared(
    _memfd: i32,
    _length: usize,
    _out: *mut CUdeviceptr,
) -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

//! Copies, and filling of memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUdeviceptr, CUmemorytype, CUstream};
use cudarc::runtime::sys::{cudaError, cudaMemcpyKind};

use crate::context::{bind, primary};
use crate::status::Result;
use crate::stream::PER_THREAD;

const HOST_TO_HOST: c_uint = cudaMemcpyKind::cudaMemcpyHostToHost as c_uint;
const HOST_TO_DEVICE: c_uint = cudaMemcpyKind::cudaMemcpyHostToDevice as c_uint;
const DEVICE_TO_HOST: c_uint = cudaMemcpyKind::cudaMemcpyDeviceToHost as c_uint;
const DEVICE_TO_DEVICE: c_uint = cudaMemcpyKind::cudaMemcpyDeviceToDevice as c_uint;
const DEFAULT: c_uint = cudaMemcpyKind::cudaMemcpyDefault as c_uint;

/// Copies in a stream. Without a stream, copies in the legacy stream and waits.
///
/// # Safety
/// Both ranges must be valid until the copy is done.
unsafe fn copy(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_uint,
    stream: Option<CUstream>,
) -> Result<()> {
    let driver = bind()?;
    let (to_device, from_device) = (to as CUdeviceptr, from as CUdeviceptr);
    // SAFETY: as the caller guarantees.
    unsafe {
        match (kind, stream) {
            (HOST_TO_HOST | DEFAULT, None) => driver.cuMemcpy(to_device, from_device, size),
            (HOST_TO_HOST | DEFAULT, Some(stream)) => {
                driver.cuMemcpyAsync(to_device, from_device, size, stream)
            }
            (HOST_TO_DEVICE, None) => driver.cuMemcpyHtoD_v2(to_device, from, size),
            (HOST_TO_DEVICE, Some(stream)) => driver.cuMemcpyHtoDAsync_v2(to_device, from, size, stream),
            (DEVICE_TO_HOST, None) => driver.cuMemcpyDtoH_v2(to, from_device, size),
            (DEVICE_TO_HOST, Some(stream)) => driver.cuMemcpyDtoHAsync_v2(to, from_device, size, stream),
            (DEVICE_TO_DEVICE, None) => driver.cuMemcpyDtoD_v2(to_device, from_device, size),
            (DEVICE_TO_DEVICE, Some(stream)) => {
                driver.cuMemcpyDtoDAsync_v2(to_device, from_device, size, stream)
            }
            _ if size == 0 => Ok(()),
            _ => Err(cudaError::cudaErrorInvalidMemcpyDirection.into()),
        }
    }
}

/// Copies rows between addresses with pitches. `stream` has the same meaning as in [`copy`].
///
/// # Safety
/// All rows must be valid until the copy is done.
unsafe fn copy_rows(
    (to, to_pitch): (*mut c_void, usize),
    (from, from_pitch): (*const c_void, usize),
    [width, height]: [usize; 2],
    kind: c_uint,
    stream: Option<CUstream>,
) -> Result<()> {
    use CUmemorytype::{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED};
    let driver = bind()?;
    if width > to_pitch || width > from_pitch {
        return Err(cudaError::cudaErrorInvalidPitchValue.into());
    }
    let (to_type, from_type) = match kind {
        HOST_TO_HOST => (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST),
        HOST_TO_DEVICE => (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST),
        DEVICE_TO_HOST => (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE),
        DEVICE_TO_DEVICE => (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE),
        DEFAULT => (CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED),
        _ => return Err(cudaError::cudaErrorInvalidMemcpyDirection.into()),
    };
    if width == 0 || height == 0 {
        return Ok(());
    }
    let copy = CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: from_type,
        srcHost: from,
        srcDevice: from as CUdeviceptr,
        srcArray: null_mut(),
        srcPitch: from_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: to_type,
        dstHost: to,
        dstDevice: to as CUdeviceptr,
        dstArray: null_mut(),
        dstPitch: to_pitch,
        WidthInBytes: width,
        Height: height,
    };
    // SAFETY: as the caller guarantees.
    unsafe {
        match stream {
            Some(stream) => driver.cuMemcpy2DAsync_v2(&raw const copy, stream),
            None => driver.cuMemcpy2DUnaligned_v2(&raw const copy),
        }
    }
}

/// Fills memory with the lowest byte of `value`, like C's `memset`. `stream` has the same meaning as in [`copy`].
///
/// # Safety
/// The range must be valid until it is filled.
unsafe fn fill(address: CUdeviceptr, value: c_int, size: usize, stream: Option<CUstream>) -> Result<()> {
    let driver = bind()?;
    if size == 0 {
        return Ok(());
    }
    // SAFETY: as the caller guarantees.
    unsafe {
        match stream {
            Some(stream) => driver.cuMemsetD8Async(address, value as u8, size, stream),
            None => driver.cuMemsetD8_v2(address, value as u8, size),
        }
    }
}

api! {
    fn cudaMemcpy(to: *mut c_void, from: *const c_void, size: usize, kind: c_uint)
        = copy(to, from, size, kind, None);

    fn cudaMemcpy_ptds(to: *mut c_void, from: *const c_void, size: usize, kind: c_uint) {
        copy(to, from, size, kind, Some(PER_THREAD))?;
        bind()?.cuStreamSynchronize(PER_THREAD)
    }

    per_thread(stream)
    fn cudaMemcpyAsync(to: *mut c_void, from: *const c_void, size: usize, kind: c_uint, stream: CUstream)
        = copy(to, from, size, kind, Some(stream));

    fn cudaMemcpyPeer(to: CUdeviceptr, to_device: c_int, from: CUdeviceptr, from_device: c_int, size: usize) {
        let driver = bind()?;
        let (to_context, from_context) = (primary(driver, to_device)?, primary(driver, from_device)?);
        driver.cuMemcpyPeer(to, to_context, from, from_context, size)
    }

    fn cudaMemcpyPeerAsync(
        to: CUdeviceptr, to_device: c_int, from: CUdeviceptr, from_device: c_int, size: usize, stream: CUstream,
    ) {
        let driver = bind()?;
        let (to_context, from_context) = (primary(driver, to_device)?, primary(driver, from_device)?);
        driver.cuMemcpyPeerAsync(to, to_context, from, from_context, size, stream)
    }

    fn cudaMemcpy2D(
        to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize,
        kind: c_uint,
    ) = copy_rows((to, to_pitch), (from, from_pitch), [width, height], kind, None);

    fn cudaMemcpy2D_ptds(
        to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize,
        kind: c_uint,
    ) {
        copy_rows((to, to_pitch), (from, from_pitch), [width, height], kind, Some(PER_THREAD))?;
        bind()?.cuStreamSynchronize(PER_THREAD)
    }

    per_thread(stream) fn cudaMemcpy2DAsync(
        to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize,
        kind: c_uint, stream: CUstream,
    ) = copy_rows((to, to_pitch), (from, from_pitch), [width, height], kind, Some(stream));

    fn cudaMemset(address: CUdeviceptr, value: c_int, size: usize) = fill(address, value, size, None);

    fn cudaMemset_ptds(address: CUdeviceptr, value: c_int, size: usize)
        = fill(address, value, size, Some(PER_THREAD));

    per_thread(stream) fn cudaMemsetAsync(address: CUdeviceptr, value: c_int, size: usize, stream: CUstream)
        = fill(address, value, size, Some(stream));

    fn cudaMemset2D(address: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize)
        = bind()?.cuMemsetD2D8_v2(address, pitch, value as u8, width, height);

    fn cudaMemset2D_ptds(address: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize)
        = bind()?.cuMemsetD2D8Async(address, pitch, value as u8, width, height, PER_THREAD);

    per_thread(stream) fn cudaMemset2DAsync(
        address: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize, stream: CUstream,
    ) = bind()?.cuMemsetD2D8Async(address, pitch, value as u8, width, height, stream);
}

//! Copies, and filling of memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUdeviceptr, CUmemorytype, CUstream};
use cudarc::runtime::sys::{cudaError, cudaMemcpyKind, cudaStream_t};

use crate::context;
use crate::driver::Driver;
use crate::status::Result;
use crate::stream::PER_THREAD;

const HOST_TO_HOST: c_uint = cudaMemcpyKind::cudaMemcpyHostToHost as c_uint;
const HOST_TO_DEVICE: c_uint = cudaMemcpyKind::cudaMemcpyHostToDevice as c_uint;
const DEVICE_TO_HOST: c_uint = cudaMemcpyKind::cudaMemcpyDeviceToHost as c_uint;
const DEVICE_TO_DEVICE: c_uint = cudaMemcpyKind::cudaMemcpyDeviceToDevice as c_uint;
const DEFAULT: c_uint = cudaMemcpyKind::cudaMemcpyDefault as c_uint;

/// Copies on the legacy stream and waits.
///
/// # Safety
///
/// Both ranges are valid for the copy.
unsafe fn copy(to: *mut c_void, from: *const c_void, size: usize, kind: c_uint) -> Result<()> {
    let driver = context::bind()?;
    let (to_device, from_device) = (to as CUdeviceptr, from as CUdeviceptr);
    // SAFETY: as the caller guarantees.
    unsafe {
        match kind {
            HOST_TO_HOST | DEFAULT => driver.cuMemcpy(to_device, from_device, size),
            HOST_TO_DEVICE => driver.cuMemcpyHtoD_v2(to_device, from, size),
            DEVICE_TO_HOST => driver.cuMemcpyDtoH_v2(to, from_device, size),
            DEVICE_TO_DEVICE => driver.cuMemcpyDtoD_v2(to_device, from_device, size),
            _ if size == 0 => Ok(()),
            _ => Err(cudaError::cudaErrorInvalidMemcpyDirection.into()),
        }
    }
}

/// Enqueues a copy.
///
/// # Safety
///
/// Both ranges are valid until the stream has done the copy.
unsafe fn enqueue_copy(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_uint,
    stream: CUstream,
) -> Result<()> {
    let driver = context::bind()?;
    let (to_device, from_device) = (to as CUdeviceptr, from as CUdeviceptr);
    // SAFETY: as the caller guarantees.
    unsafe {
        match kind {
            HOST_TO_HOST | DEFAULT => driver.cuMemcpyAsync(to_device, from_device, size, stream),
            HOST_TO_DEVICE => driver.cuMemcpyHtoDAsync_v2(to_device, from, size, stream),
            DEVICE_TO_HOST => driver.cuMemcpyDtoHAsync_v2(to, from_device, size, stream),
            DEVICE_TO_DEVICE => driver.cuMemcpyDtoDAsync_v2(to_device, from_device, size, stream),
            _ if size == 0 => Ok(()),
            _ => Err(cudaError::cudaErrorInvalidMemcpyDirection.into()),
        }
    }
}

/// One side of a copy of rows.
#[derive(Debug, Clone, Copy)]
struct Rows {
    address: *const c_void,
    pitch: usize,
}

/// A copy of rows of bytes.
#[derive(Debug, Clone, Copy)]
struct Copy2d {
    to: Rows,
    from: Rows,
    width: usize,
    height: usize,
    kind: c_uint,
}

impl Copy2d {
    /// Returns the driver's form, or `None` if nothing is to be copied.
    fn checked(self) -> Result<Option<CUDA_MEMCPY2D>> {
        let Self { to, from, width, height, kind } = self;
        if width > to.pitch || width > from.pitch {
            return Err(cudaError::cudaErrorInvalidPitchValue.into());
        }
        let (host, device, any) = (
            CUmemorytype::CU_MEMORYTYPE_HOST,
            CUmemorytype::CU_MEMORYTYPE_DEVICE,
            CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        );
        let (to_type, from_type) = match kind {
            HOST_TO_HOST => (host, host),
            HOST_TO_DEVICE => (device, host),
            DEVICE_TO_HOST => (host, device),
            DEVICE_TO_DEVICE => (device, device),
            DEFAULT => (any, any),
            _ => return Err(cudaError::cudaErrorInvalidMemcpyDirection.into()),
        };
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: from_type,
            srcHost: from.address,
            srcDevice: from.address as CUdeviceptr,
            srcArray: null_mut(),
            srcPitch: from.pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: to_type,
            dstHost: to.address.cast_mut(),
            dstDevice: to.address as CUdeviceptr,
            dstArray: null_mut(),
            dstPitch: to.pitch,
            WidthInBytes: width,
            Height: height,
        };
        Ok((width > 0 && height > 0).then_some(copy))
    }
}

/// Enqueues filling with a byte.
///
/// # Safety
///
/// The range is valid until the stream has filled it.
unsafe fn enqueue_fill(address: *mut c_void, value: c_int, size: usize, stream: CUstream) -> Result<()> {
    let driver = context::bind()?;
    if size == 0 {
        return Ok(());
    }
    // SAFETY: as the caller guarantees.
    unsafe { driver.cuMemsetD8Async(address as CUdeviceptr, low_byte(value), size, stream) }
}

/// Returns the byte that memory is filled with: the lowest one, as for C's memset.
fn low_byte(value: c_int) -> u8 {
    value.to_le_bytes()[0]
}

/// Waits for the thread's own stream.
fn wait_for_own(driver: &Driver) -> Result<()> {
    // SAFETY: this stream always exists.
    unsafe { driver.cuStreamSynchronize(PER_THREAD) }
}

api! {
    fn cudaMemcpy(to: *mut c_void, from: *const c_void, size: usize, kind: c_uint) {
        copy(to, from, size, kind)
    }

    fn cudaMemcpy_ptds(to: *mut c_void, from: *const c_void, size: usize, kind: c_uint) {
        enqueue_copy(to, from, size, kind, PER_THREAD)?;
        wait_for_own(context::bind()?)
    }

    per_thread(stream)
    fn cudaMemcpyAsync(
        to: *mut c_void, from: *const c_void, size: usize, kind: c_uint, stream: cudaStream_t,
    ) {
        enqueue_copy(to, from, size, kind, stream.cast())
    }

    fn cudaMemcpyPeer(to: *mut c_void, to_device: c_int, from: *const c_void, from_device: c_int, size: usize) {
        let driver = context::bind()?;
        let (to_context, from_context) =
            (context::primary(driver, to_device)?, context::primary(driver, from_device)?);
        driver.cuMemcpyPeer(to as CUdeviceptr, to_context, from as CUdeviceptr, from_context, size)
    }

    fn cudaMemcpyPeerAsync(
        to: *mut c_void, to_device: c_int, from: *const c_void, from_device: c_int, size: usize,
        stream: cudaStream_t,
    ) {
        let driver = context::bind()?;
        let (to_context, from_context) =
            (context::primary(driver, to_device)?, context::primary(driver, from_device)?);
        let (to, from) = (to as CUdeviceptr, from as CUdeviceptr);
        driver.cuMemcpyPeerAsync(to, to_context, from, from_context, size, stream.cast())
    }

    fn cudaMemcpy2D(
        to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize,
        kind: c_uint,
    ) {
        let driver = context::bind()?;
        let (to, from) = (Rows { address: to, pitch: to_pitch }, Rows { address: from, pitch: from_pitch });
        match (Copy2d { to, from, width, height, kind }).checked()? {
            Some(copy) => driver.cuMemcpy2DUnaligned_v2(&raw const copy),
            None => Ok(()),
        }
    }

    fn cudaMemcpy2D_ptds(
        to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize,
        kind: c_uint,
    ) {
        let driver = context::bind()?;
        let (to, from) = (Rows { address: to, pitch: to_pitch }, Rows { address: from, pitch: from_pitch });
        if let Some(copy) = (Copy2d { to, from, width, height, kind }).checked()? {
            driver.cuMemcpy2DAsync_v2(&raw const copy, PER_THREAD)?;
        }
        wait_for_own(driver)
    }

    per_thread(stream)
    fn cudaMemcpy2DAsync(
        to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize,
        kind: c_uint, stream: cudaStream_t,
    ) {
        let driver = context::bind()?;
        let (to, from) = (Rows { address: to, pitch: to_pitch }, Rows { address: from, pitch: from_pitch });
        match (Copy2d { to, from, width, height, kind }).checked()? {
            Some(copy) => driver.cuMemcpy2DAsync_v2(&raw const copy, stream.cast()),
            None => Ok(()),
        }
    }

    fn cudaMemset(address: *mut c_void, value: c_int, size: usize) {
        let driver = context::bind()?;
        if size == 0 {
            return Ok(());
        }
        driver.cuMemsetD8_v2(address as CUdeviceptr, low_byte(value), size)
    }

    fn cudaMemset_ptds(address: *mut c_void, value: c_int, size: usize) {
        enqueue_fill(address, value, size, PER_THREAD)
    }

    per_thread(stream)
    fn cudaMemsetAsync(address: *mut c_void, value: c_int, size: usize, stream: cudaStream_t) {
        enqueue_fill(address, value, size, stream.cast())
    }

    fn cudaMemset2D(address: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize) {
        context::bind()?.cuMemsetD2D8_v2(address as CUdeviceptr, pitch, low_byte(value), width, height)
    }

    fn cudaMemset2D_ptds(address: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize) {
        let (driver, address) = (context::bind()?, address as CUdeviceptr);
        driver.cuMemsetD2D8Async(address, pitch, low_byte(value), width, height, PER_THREAD)
    }

    per_thread(stream)
    fn cudaMemset2DAsync(
        address: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize, stream: cudaStream_t,
    ) {
        let (driver, address) = (context::bind()?, address as CUdeviceptr);
        driver.cuMemsetD2D8Async(address, pitch, low_byte(value), width, height, stream.cast())
    }
}

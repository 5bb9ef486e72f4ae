//! Streams, and functions of the host in them.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use cudarc::driver::sys::{CUstream, CUstreamCallback};
use cudarc::runtime::sys::{cudaEvent_t, cudaHostFn_t, cudaStream_t};

use crate::context;
use crate::status::{Result, Status};

/// The calling thread's own default stream, `cudaStreamPerThread`.
pub(crate) const PER_THREAD: CUstream = without_provenance_mut(2);

/// Returns the stream, or the calling thread's own default stream for null.
pub(crate) fn or_per_thread(stream: cudaStream_t) -> cudaStream_t {
    if stream.is_null() { PER_THREAD.cast() } else { stream }
}

/// Creates a stream.
///
/// # Safety
///
/// `stream` is null or valid for a write.
unsafe fn create(stream: *mut cudaStream_t, flags: c_uint, priority: c_int) -> Result<()> {
    let driver = context::bind()?;
    if stream.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: it is not null.
    unsafe { driver.cuStreamCreateWithPriority(stream.cast(), flags, priority) }
}

api! {
    fn cudaStreamCreate(stream: *mut cudaStream_t) {
        create(stream, 0, 0)
    }

    fn cudaStreamCreateWithFlags(stream: *mut cudaStream_t, flags: c_uint) {
        create(stream, flags, 0)
    }

    fn cudaStreamCreateWithPriority(stream: *mut cudaStream_t, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)
    }

    fn cudaStreamDestroy(stream: cudaStream_t) {
        context::bind()?.cuStreamDestroy_v2(stream.cast())
    }

    per_thread(stream)
    fn cudaStreamQuery(stream: cudaStream_t) {
        context::bind()?.cuStreamQuery(stream.cast())
    }

    per_thread(stream)
    fn cudaStreamSynchronize(stream: cudaStream_t) {
        context::bind()?.cuStreamSynchronize(stream.cast())
    }

    per_thread(stream)
    fn cudaStreamWaitEvent(stream: cudaStream_t, event: cudaEvent_t, flags: c_uint) {
        context::bind()?.cuStreamWaitEvent(stream.cast(), event.cast(), flags)
    }

    // The status that the callback gets is the driver's, which has the same numbers.
    per_thread(stream)
    fn cudaStreamAddCallback(
        stream: cudaStream_t, callback: CUstreamCallback, data: *mut c_void, flags: c_uint,
    ) {
        context::bind()?.cuStreamAddCallback(stream.cast(), callback, data, flags)
    }

    per_thread(stream)
    fn cudaLaunchHostFunc(stream: cudaStream_t, function: cudaHostFn_t, data: *mut c_void) {
        context::bind()?.cuLaunchHostFunc(stream.cast(), function, data)
    }

    per_thread(stream)
    fn cudaStreamGetFlags(stream: cudaStream_t, flags: *mut c_uint) {
        context::bind()?.cuStreamGetFlags(stream.cast(), flags)
    }

    per_thread(stream)
    fn cudaStreamGetPriority(stream: cudaStream_t, priority: *mut c_int) {
        context::bind()?.cuStreamGetPriority(stream.cast(), priority)
    }

    per_thread(stream)
    fn cudaStreamGetId(stream: cudaStream_t, id: *mut c_ulonglong) {
        context::bind()?.cuStreamGetId(stream.cast(), id)
    }

    per_thread(stream)
    fn cudaStreamGetDevice(stream: cudaStream_t, device: *mut c_int) {
        let driver = context::bind()?;
        let (mut own, mut context) = (null_mut(), null_mut());
        driver.cuCtxGetCurrent(&raw mut own)?;
        driver.cuStreamGetCtx(stream.cast(), &raw mut context)?;
        // The driver tells the device of the current context only.
        driver.cuCtxSetCurrent(context)?;
        let found = driver.cuCtxGetDevice(device);
        driver.cuCtxSetCurrent(own)?;
        found
    }

    per_thread(stream)
    fn cudaStreamAttachMemAsync(stream: cudaStream_t, address: *mut c_void, size: usize, flags: c_uint) {
        context::bind()?.cuStreamAttachMemAsync(stream.cast(), address as u64, size, flags)
    }
}

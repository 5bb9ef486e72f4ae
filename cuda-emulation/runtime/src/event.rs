//! Events.

use std::ffi::c_uint;

use cudarc::driver::sys::CUipcEventHandle;
use cudarc::runtime::sys::{cudaEvent_t, cudaStream_t};

use crate::context;
use crate::status::{Result, Status};

/// Creates an event.
///
/// # Safety
///
/// `event` is null or valid for a write.
unsafe fn create(event: *mut cudaEvent_t, flags: c_uint) -> Result<()> {
    let driver = context::bind()?;
    if event.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: it is not null.
    unsafe { driver.cuEventCreate(event.cast(), flags) }
}

api! {
    fn cudaEventCreate(event: *mut cudaEvent_t) {
        create(event, 0)
    }

    fn cudaEventCreateWithFlags(event: *mut cudaEvent_t, flags: c_uint) {
        create(event, flags)
    }

    fn cudaEventDestroy(event: cudaEvent_t) {
        context::bind()?.cuEventDestroy_v2(event.cast())
    }

    fn cudaEventQuery(event: cudaEvent_t) {
        context::bind()?.cuEventQuery(event.cast())
    }

    fn cudaEventSynchronize(event: cudaEvent_t) {
        context::bind()?.cuEventSynchronize(event.cast())
    }

    fn cudaIpcGetEventHandle(handle: *mut CUipcEventHandle, event: cudaEvent_t) {
        context::bind()?.cuIpcGetEventHandle(handle, event.cast())
    }

    fn cudaIpcOpenEventHandle(event: *mut cudaEvent_t, handle: CUipcEventHandle) {
        context::bind()?.cuIpcOpenEventHandle(event.cast(), handle)
    }

    per_thread(stream)
    fn cudaEventRecord(event: cudaEvent_t, stream: cudaStream_t) {
        context::bind()?.cuEventRecord(event.cast(), stream.cast())
    }

    per_thread(stream)
    fn cudaEventRecordWithFlags(event: cudaEvent_t, stream: cudaStream_t, flags: c_uint) {
        context::bind()?.cuEventRecordWithFlags(event.cast(), stream.cast(), flags)
    }

    fn cudaEventElapsedTime(milliseconds: *mut f32, start: cudaEvent_t, end: cudaEvent_t) {
        context::bind()?.cuEventElapsedTime(milliseconds, start.cast(), end.cast())
    }

    // Of the same signature; it differs in the events that it accepts, which the driver decides.
    #[cfg(feature = "cuda-12")]
    fn cudaEventElapsedTime_v2(milliseconds: *mut f32, start: cudaEvent_t, end: cudaEvent_t) {
        context::bind()?.cuEventElapsedTime(milliseconds, start.cast(), end.cast())
    }
}

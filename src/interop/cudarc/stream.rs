#![allow(unsafe_code)] // An unsafe trait, and cudarc's functions for raw streams.

use std::error::Error;

use cudarc::driver::sys::{CUevent_flags, CUevent_wait_flags, CUstream};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};

use crate::cuda::is_stream_complete;
use crate::interop::device;
use crate::stream::Stream;
use crate::sys;

// SAFETY: it owns the stream, or the context of the device has it; `device` returns the device.
unsafe impl Stream for CudaStream {
    fn as_raw(&self) -> sys::cudaStream_t {
        self.cu_stream().cast()
    }
    fn device(&self) -> Option<i32> {
        device(self.context())
    }
    fn is_complete(&self) -> Result<bool, Box<dyn Error>> {
        // Not by `bind_to_thread`, as in `order`.
        // SAFETY: the context is live, and so is the stream.
        unsafe {
            result::ctx::set_current(self.context().cu_ctx())?;
            is_stream_complete(self.as_raw())
        }
    }
}

/// Makes the work that is enqueued on `later` from now on wait for the work that is on `earlier`. If CUDA cannot, the
/// host waits instead.
///
/// # Safety
/// Both are live streams of the context's device.
pub(super) unsafe fn order(
    context: &CudaContext,
    earlier: CUstream,
    later: CUstream,
) -> Result<(), DriverError> {
    // Not by `bind_to_thread`, which reports and then forgets errors of the past.
    // SAFETY: the context is live. The caller guarantees that the streams are.
    unsafe {
        result::ctx::set_current(context.cu_ctx())
            .and_then(|()| wait_by_event(earlier, later))
            .or_else(|_| result::stream::synchronize(earlier))
    }
}

/// Makes one stream wait for another.
///
/// # Safety
/// Both are live streams of the current context.
unsafe fn wait_by_event(earlier: CUstream, later: CUstream) -> Result<(), DriverError> {
    let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
    // SAFETY: the caller guarantees that the streams are live. CUDA keeps a destroyed event as long as work refers to it.
    unsafe {
        let ordered = result::event::record(event, earlier).and_then(|()| {
            result::stream::wait_event(later, event, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
        });
        ordered.and(result::event::destroy(event))
    }
}

//! The CUDA context of a thread.

use std::ffi::{c_int, c_void};

use super::driver::driver_function;

type GetCurrent = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The context that was current on a thread, for another thread that works on its behalf.
///
/// NCCL makes the device current again that was so before its call, which is device 0 on a new thread. Since CUDA 12,
/// that creates a context on device 0, which takes memory there.
#[derive(Clone, Copy)]
pub(crate) struct CudaContext {
    context: *mut c_void,
    set_current: SetCurrent,
}

// SAFETY: CUDA's contexts may be current on several threads.
unsafe impl Send for CudaContext {}

impl CudaContext {
    /// Returns the calling thread's context; `None` if it has none, or if the process has not loaded the driver.
    pub(crate) fn current() -> Option<Self> {
        let (get, set) = (driver_function(c"cuCtxGetCurrent")?, driver_function(c"cuCtxSetCurrent")?);
        // SAFETY: the driver's functions of these names have these signatures.
        let (get_current, set_current) = unsafe {
            (
                std::mem::transmute::<*const c_void, GetCurrent>(get),
                std::mem::transmute::<*const c_void, SetCurrent>(set),
            )
        };
        let mut context = std::ptr::null_mut();
        // SAFETY: a valid out-parameter.
        let code = unsafe { get_current(&raw mut context) };
        (code == 0 && !context.is_null()).then_some(Self { context, set_current })
    }

    /// Makes it the calling thread's context.
    pub(crate) fn make_current(self) {
        // SAFETY: it is current on another thread, which waits for this one. An error changes nothing.
        unsafe { (self.set_current)(self.context) };
    }
}

//! The state of a CUDA stream, from the driver.

use std::error::Error;
use std::ffi::{c_int, c_void};

use super::driver::driver_function;
use crate::sys::cudaStream_t;

type Query = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Returns whether all work on a stream is complete; an error if the process has not loaded the driver.
///
/// # Safety
/// The stream is null or live.
pub(crate) unsafe fn is_stream_complete(stream: cudaStream_t) -> Result<bool, Box<dyn Error>> {
    const SUCCESS: c_int = 0;
    const NOT_READY: c_int = 600;
    let query = driver_function(c"cuStreamQuery").ok_or("the process has not loaded CUDA's driver")?;
    // SAFETY: the driver's function of this name has this signature.
    let query = unsafe { std::mem::transmute::<*const c_void, Query>(query) };
    // SAFETY: the caller guarantees it.
    match unsafe { query(stream.cast()) } {
        SUCCESS => Ok(true),
        NOT_READY => Ok(false),
        code => Err(format!("cuStreamQuery returned {code}").into()),
    }
}

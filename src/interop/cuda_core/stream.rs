#![allow(unsafe_code)] // An unsafe trait.

use std::error::Error;

use cuda_core::CudaStream;

use crate::interop::device;
use crate::stream::Stream;
use crate::sys;

// SAFETY: it owns the stream, or whoever made it without ownership guarantees that the stream outlives it; `device` returns
// the device.
unsafe impl Stream for CudaStream {
    fn as_raw(&self) -> sys::cudaStream_t {
        self.cu_stream().cast()
    }
    fn device(&self) -> Option<i32> {
        device(self.context())
    }
    fn is_complete(&self) -> Result<bool, Box<dyn Error>> {
        Ok(self.query()?)
    }
}

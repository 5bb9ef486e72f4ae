#![allow(unsafe_code)] // An unsafe trait.

use std::error::Error;
use std::sync::Arc;

use cuda_core::{CudaContext, CudaStream};

use crate::{Stream, sys};

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

// SAFETY: as above.
unsafe impl Stream for Arc<CudaStream> {
    fn as_raw(&self) -> sys::cudaStream_t {
        (**self).as_raw()
    }
    fn device(&self) -> Option<i32> {
        (**self).device()
    }
    fn is_complete(&self) -> Result<bool, Box<dyn Error>> {
        (**self).is_complete()
    }
}

/// Returns the number of a context's device.
pub(super) fn device(context: &CudaContext) -> Option<i32> {
    i32::try_from(context.ordinal()).ok()
}

//! Operations and memory of a library of tensors.

use std::error::Error;
use std::ffi::c_char;
use std::sync::Arc;

use cudarc::driver::CudaSlice;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// An operation that the library of tensors does not have. A graph of operations is shared between threads.
pub(crate) trait CustomOp1: Send + Sync {
    fn name(&self) -> &'static str;
    fn forward(&self, input: &Storage) -> Result<Storage>;
}

/// An operation in a graph.
pub(crate) type Op = Arc<dyn CustomOp1>;

/// The memory of a tensor.
pub(crate) enum Storage {
    F32(CudaSlice<f32>),
    F64(CudaSlice<f64>),
}

/// An id in C's form, which the first rank sends to the others.
pub(crate) type Id = [c_char; 128];

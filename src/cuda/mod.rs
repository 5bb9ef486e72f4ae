//! CUDA's driver, if the process has loaded it: contexts and streams. This crate neither links nor loads CUDA.
#![allow(unsafe_code)]

mod context;
mod driver;
mod stream;

pub(crate) use context::CudaContext;
pub(crate) use stream::is_stream_complete;

//! CUDA's driver, if the process has loaded it: contexts, devices and streams. This crate neither links nor loads CUDA.
#![allow(unsafe_code)]

mod context;
mod device;
mod driver;
mod stream;

pub(crate) use context::CudaContext;
pub(crate) use device::{current_device, device_of_memory};
pub(crate) use stream::is_stream_complete;

//! The emulated CUDA runtime: `libcudart.so.12`, or `libcudart.so.13` with the feature `cuda-13`, for C programs that launch no
//! kernels.
//!
//! A thin layer over the driver API, which it looks up in `libcuda.so.1`. Devices, contexts, memory, streams and events are the
//! driver's, so a program may use both. The runtime's own state is the current device and the last error of each thread.
#![allow(unsafe_code, non_snake_case)]

#[cfg(not(any(feature = "cuda-12", feature = "cuda-13")))]
compile_error!("one of the features cuda-12 and cuda-13 is needed");
#[cfg(all(feature = "cuda-12", feature = "cuda-13"))]
compile_error!("the features cuda-12 and cuda-13 exclude each other");

#[macro_use]
mod api;
mod context;
mod copy;
mod device;
mod driver;
mod link_map;
mod memory;
mod properties;
mod status;
mod stream;
mod unsupported;
mod version;

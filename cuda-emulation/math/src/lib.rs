//! Stand-ins for cuBLAS (`libcublas.so.12`, `.13`) and cuRAND (`libcurand.so.10`) that compute nothing.
//!
//! NVIDIA's libraries do not run on the stand-in for CUDA's driver. Programs such as candle's create their handles when a
//! device is opened, whatever they then do with it: that works, and all that would compute is an error that names the function.

#![allow(unsafe_code, non_snake_case)]

#[cfg(not(any(feature = "cublas-12", feature = "cublas-13", feature = "curand")))]
compile_error!("one of the features cublas-12, cublas-13 and curand is needed");
#[cfg(any(
    all(feature = "cublas-12", feature = "cublas-13"),
    all(feature = "cublas-12", feature = "curand"),
    all(feature = "cublas-13", feature = "curand")
))]
compile_error!("the features cublas-12, cublas-13 and curand exclude each other");

#[macro_use]
mod unsupported;
#[cfg(not(feature = "curand"))]
mod cublas;
#[cfg(feature = "curand")]
mod curand;
mod handles;

//! The emulated cuBLAS (`libcublas.so.12`, `.13`) and cuRAND (`libcurand.so.10`), which compute nothing.
//!
//! NVIDIA's libraries do not run on the emulated driver. Programs such as candle's create their handles when they open a device,
//! even if they never use them. That succeeds; a function that would compute reports its name and returns an error.

#![allow(unsafe_code, non_snake_case)]

#[cfg(not(any(feature = "cublas-12", feature = "cublas-13", feature = "curand")))]
compile_error!("one of the features cublas-12, cublas-13 and curand is needed");
#[cfg(any(
    all(feature = "cublas-12", feature = "cublas-13"),
    all(feature = "cublas-12", feature = "curand"),
    all(feature = "cublas-13", feature = "curand")
))]
compile_error!("the features cublas-12, cublas-13 and curand exclude each other");

#[cfg(not(feature = "curand"))]
mod cublas;
#[cfg(feature = "curand")]
mod curand;
mod shared;

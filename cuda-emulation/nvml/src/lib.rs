//! A stand-in for NVIDIA's management library, `libnvidia-ml.so.1`: what programs ask that look for GPUs.
//!
//! The devices are those of the stand-in for CUDA's driver, which it asks. What nothing here is the truth of, such as
//! temperatures, is not supported.

#![allow(unsafe_code, non_snake_case)]

mod api;
mod driver;
mod status;
mod unsupported;

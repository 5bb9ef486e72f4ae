//! The emulated NVIDIA management library, `libnvidia-ml.so.1`, for programs that look for GPUs.
//!
//! It describes the devices of the emulated driver. Values that the emulation does not have, such as temperatures, are not supported.

#![allow(unsafe_code, non_snake_case)]

mod api;
mod driver;
mod status;

//! An emulation of CUDA's driver: `libcuda.so.1` on host memory, for programs that allocate, copy, synchronize and
//! communicate on GPUs, and launch no kernels themselves.
//!
//! `docs/no-gpu.md` describes it for users.

#![deny(unsafe_code)]

mod access;
mod allocation;
mod api;
mod callback;
mod capture;
mod config;
mod current;
mod driver;
mod error;
mod event;
mod fault;
mod handle;
#[cfg(all(test, loom))]
mod loom_models;
mod mapping;
mod operation;
mod race;
#[cfg(test)]
mod race_tests;
mod report;
mod scheduler;
#[cfg(test)]
mod scheduler_tests;
mod state;

pub use self::api::extension;

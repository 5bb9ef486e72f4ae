//! A stand-in for CUDA's driver: `libcuda.so.1` on host memory, for programs that allocate, copy, synchronise and
//! communicate on GPUs, and launch no kernels of their own.
//!
//! `docs/no-gpu.md` describes it for users.

#![deny(unsafe_code)]

mod allocation;
mod api;
mod capture;
mod capture_rules;
mod clock;
mod config;
mod context;
mod device;
mod driver;
mod error;
mod event;
pub mod extension;
mod fault;
mod graph;
mod handle;
mod history;
mod interprocess;
mod launch;
mod leak;
#[cfg(all(test, loom))]
mod loom_models;
mod mapping;
mod message;
mod operation;
mod pool;
mod race;
#[cfg(test)]
mod race_tests;
mod references;
mod scheduler;
#[cfg(test)]
mod scheduler_tests;
mod sync;
mod thread_end;
mod turns;
mod user_object;
mod virtual_memory;
mod visible;

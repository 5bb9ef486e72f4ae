//! NCCL's C ABI on the CPU, in one program: it is linked once, and its helpers are compiled once.
//!
//! Process state (environment, limits, descriptors) is set and counted in separate processes, one per rank or one per test
//! ([`common::processes::is_own_process`]). Long tests are ignored; `.ci/run long` runs them.

#[macro_use]
mod common;

// Tests start in the order of their names; these take longest, and must not run at the same time.
mod between_processes;
mod children;
mod debug;
#[cfg(feature = "device-api")]
mod device_api;
mod disagreements;
mod environment;
mod findings;
mod fuzz;
mod init;
mod invalid_buffers;
mod many_ranks;
mod messages;
mod mistakes;
mod misuse;
mod namespaces;
mod nonblocking;
mod one_sided;
mod parameters;
mod planted_faults;
mod rank_failure;
mod ras;
mod resource_limits;
mod teardown;
mod waits;

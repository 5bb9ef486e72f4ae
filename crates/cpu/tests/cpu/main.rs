//! NCCL's C ABI on the CPU, in one program: it is linked once, and its helpers are compiled once.
//!
//! What belongs to a process (its environment, limits and descriptors) is set and counted in processes of its own: those of
//! ranks, or a test's ([`common::processes::is_own_process`]). The tests that take long are ignored; `.ci/long` runs them.

#[macro_use]
mod common;

// Tests start in the order of their names; these take longest, and none of them runs beside another.
mod between_processes;
mod debug;
#[cfg(feature = "device-api")]
mod device_api;
mod disagreements;
mod environment;
mod findings;
mod fuzz;
mod invalid_buffers;
mod lifecycle;
mod many_ranks;
mod memory;
mod messages;
mod mistakes;
mod misuse;
mod namespaces;
mod one_sided;
mod parameters;
mod planted_faults;
mod point_to_point;
mod rank_failure;
mod ras;
mod waits;

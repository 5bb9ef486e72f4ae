//! The variables of every launcher, and the exchange of the id between real processes, each of
//! which ends with an `all_reduce` on the CPU backend.
//!
//! `cargo test -p libnccl-launch`; with torchrun in PATH also
//! `cargo test -p libnccl-launch torchrun_itself -- --ignored`, and likewise `mpirun_itself`,
//! `mpiexec_itself` and `srun_itself`.
#![cfg(target_os = "linux")] // Elsewhere there is no CPU backend.

mod environments;
mod failures;
mod launchers;
mod many_ranks;
mod misuse;
mod processes;
mod rank_process;
mod store_server;

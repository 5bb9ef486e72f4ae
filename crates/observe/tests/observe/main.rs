//! The watchdog, recordings that a signal or a panic writes, and the client of NCCL's RAS service.
#![cfg(target_os = "linux")] // Elsewhere there is no CPU backend.

mod ras;
mod recorder_signal;
mod watchdog;

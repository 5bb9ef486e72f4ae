//! NCCL's C ABI on the CPU, with host memory for device memory, or with [a stand-in for CUDA](#on-cuda-devices).
//!
//! [`nccl`] returns it for the crate `libnccl`. [`TABLE`] holds its functions; this library exports none of them by name, so
//! a program can hold it beside the real NCCL.
//!
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))] // libnccl reads variables.

// A call goes `abi` -> `comm` -> `coll` -> `shm` and `reduce`; `bootstrap` is how ranks come to share memory, `sync` is how
// they wait, `ras` answers questions about them, `cuda` is the stand-in for CUDA where there is one, `diag` is what they
// report. Nothing imports upwards. `cancellation` is at the bottom.
mod abi;
mod bootstrap;
mod cancellation;
mod coll;
mod comm;
mod cuda;
mod diag;
mod ras;
mod reduce;
mod run_ranks;
mod shm;
mod sync;

#[cfg(all(test, loom))]
mod loom_models;

#[cfg(feature = "device-api")]
pub use abi::DEVICE_TABLE;
pub use abi::TABLE;
#[doc(hidden)]
pub use abi::ncclResetDebugInit;
pub use run_ranks::run_ranks;

/// Returns the CPU implementation as the facade's [`Nccl`](libnccl::Nccl).
///
/// # Panics
/// Never: the table answers `ncclGetVersion`.
#[must_use]
#[allow(unsafe_code)]
pub fn nccl() -> libnccl::Nccl {
    // SAFETY: the functions are this crate's, with the signatures that the table's type demands and NCCL's contracts,
    // and they live as long as the program.
    unsafe { libnccl::Nccl::from_table("the CPU implementation", TABLE) }.expect("ncclGetVersion answers")
}

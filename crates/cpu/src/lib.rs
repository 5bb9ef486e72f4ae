//! NCCL's C ABI on the CPU. The memory is host memory, or device memory of the [CUDA emulation](#on-cuda-devices).
//!
//! [`nccl`] returns the backend as an [`Nccl`](libnccl::Nccl), for use with the crate `libnccl`. [`TABLE`] contains the backend's
//! C functions. The crate exports no C symbols, so a program can contain both this crate and the real NCCL.
//!
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))] // libnccl reads variables.

// A call goes `functions` -> `comm` -> `coll` -> `shm` and `reduce`. docs/design.md describes the modules; imports point down.
mod bootstrap;
mod coll;
mod comm;
mod cuda;
mod diag;
mod functions;
mod ras;
mod reduce;
mod shm;
mod sync;

#[cfg(all(test, loom))]
#[path = "../tests/models/loom.rs"]
mod loom_models;

use std::panic;
use std::thread;

use libnccl::{Communicator, Result};

use crate::shm::layout::MAX_RANKS;

#[cfg(feature = "device-api")]
pub use functions::DEVICE_TABLE;
pub use functions::TABLE;
#[doc(hidden)]
pub use functions::ncclResetDebugInit;

/// Returns the CPU backend as an [`Nccl`](libnccl::Nccl).
///
/// # Panics
/// Never: the only call that could fail, `ncclGetVersion`, always succeeds in this backend.
#[must_use]
#[allow(unsafe_code)]
pub fn nccl() -> libnccl::Nccl {
    // SAFETY: the functions are this crate's, with the signatures that the table's type demands and NCCL's contracts,
    // and they live as long as the program.
    unsafe { libnccl::Nccl::from_table("the CPU backend", TABLE) }.expect("ncclGetVersion succeeds")
}

/// Runs `each` on every rank of a new communicator, one thread per rank. Returns the error of the lowest rank that failed.
/// For examples and tests.
///
/// ```
/// use libnccl::{ReduceOp, StreamRef};
///
/// # fn main() -> libnccl::Result<()> {
/// libnccl_cpu::run_ranks(3, |comm| {
///     let mut sum = [comm.rank() as u32];
///     comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, StreamRef::DEFAULT)?;
///     assert_eq!(sum, [3]);
///     Ok(())
/// })
/// # }
/// ```
///
/// # Errors
/// Returns an error of `each`. Returns [`Error::InvalidArgument`](libnccl::Error::InvalidArgument) or
/// [`Error::Nccl`](libnccl::Error::Nccl) if `ranks` is 0 or above 1024.
///
/// # Panics
/// Panics if `each` panics on a rank. The panic occurs after `each` has ended on all ranks.
pub fn run_ranks(ranks: usize, each: impl Fn(Communicator) -> Result<()> + Sync) -> Result<()> {
    let nccl = nccl();
    if ranks > MAX_RANKS {
        // Fails before a list of this many devices is created.
        nccl.communicator(ranks, 0, &nccl.unique_id()?).init()?;
    }
    let devices: Vec<i32> = (0..).take(ranks.min(MAX_RANKS)).collect();
    let comms = nccl.init_all(&devices)?;
    thread::scope(|scope| {
        let each = &each;
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || each(comm))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|ended| ended.unwrap_or_else(|panicked| panic::resume_unwind(panicked)))
            .fold(Ok(()), Result::and)
    })
}

//! NCCL's C ABI on the CPU, with host memory for device memory.
//!
//! For programs that use NCCL, to be written and tested where no GPU is: the same calls, the same results, the
//! same errors. [`TABLE`] holds the functions; this library exports none of them by name, so a program can hold
//! it beside the real NCCL.
//!
//! Ranks are threads of one process, processes of one host, or both. They meet at an abstract Unix socket and
//! share anonymous memory, so nothing is left behind however they end. One host only: several are what NCCL is for.
//!
//! What differs from NCCL, by design:
//!
//! - Streams are ignored: an operation has ended when its call, or the group it is in, returns.
//! - What NCCL leaves undefined is an error: ranks that call different collectives, or sends and receives that
//!   do not match, are told who called what. A rank that dies, aborts or leaves gives those who wait for it an
//!   error.
//! - Devices are only numbers, and there are no events: `launchCompletionEvent` is ignored.
//! - What has no meaning here (channels, networks, thread blocks, algorithms) is checked and then ignored;
//!   encryption with a key, which would have to be kept, answers `ncclInvalidUsage`.
//! - `ncclGetLastError` has a text for each thread, which lives as long, and `ncclCommGetAsyncError` brings a thread
//!   that of the failure it tells. A thread that has seen no failure is given the latest of all. NCCL has one text,
//!   in which threads overwrite each other's.
//! - Calls on a communicator that does not block answer `ncclInProgress` and run on a thread of their own.
//! - `ncclCommDestroy` gives up what is still being made, the communicator itself or another one of it, as
//!   `ncclCommAbort` does. NCCL answers `ncclInvalidArgument` and frees nothing, though the handle must not be used
//!   any more after that: the rank would wait for its peers for ever.
//!
//! As in NCCL, a rank waits without limit for others that are alive and do not call: for what can be ended, have
//! the communicator not block, and abort it. `ncclCommInitRank` has nobody to notice the death of ranks that have
//! not come yet.
//!
//! What is the same, to the bit: the rounding of every type at every step, wrapping integers, which NaN counts, and
//! the order in which floats are added. `count` elements are divided into as many chunks as there are ranks, of
//! equal length but rounded up to 512 bytes; chunk k begins with the value of rank k + 1 and ends with that of
//! rank k, as in NCCL's ring; a reduction to a root ends with the root's.
//!
//! Memory from `ncclMemAlloc` is shared between the ranks' processes and used without copies; other memory is read
//! across processes or staged: each process measures once which is faster, and one rank for which it is staging, or
//! which may not read, has all of them stage. `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=SHM` says which and why.
//! `NCCL_P2P_DISABLE=1` has everything staged, and `NCCL_SHM_DISABLE=1`, at all ranks, what can be read read.
#![deny(unsafe_code)]

// C's side: arguments become safe types, failures become codes.
mod abi;
mod table;

// What C holds in its hands.
mod communicator;
mod handle;
mod options;
mod registry;
mod slot;

// How calls run: at once or in a group, on this thread or another one.
mod executor;
mod group;
mod init;

// What ranks do together.
mod agreement;
mod collective;
mod exchange;
mod one_sided;
mod point_to_point;
mod suspension;
mod window;

// What they share, and what they can use of each other's.
mod buffer;
mod foreign;
mod mapping;
mod memory;
mod reach;
mod segment;
mod world;

// How they find each other, and whether they live.
mod bootstrap;
mod growth;
mod process;
mod shrink;
mod split;
mod unique_id;
mod watch;

// Arithmetic.
mod data_type;
mod element;
mod reduction;
mod simd;
mod small_float;

// What is said to the user.
mod debug;
mod failure;
mod last_error;
mod param;

#[cfg(all(test, loom))]
mod interleavings;

pub use table::TABLE;

/// The CPU implementation as the facade's [`Nccl`](libnccl::Nccl).
///
/// # Panics
/// Never: the table answers `ncclGetVersion`.
#[must_use]
#[allow(unsafe_code)]
pub fn nccl() -> libnccl::Nccl {
    // SAFETY: the functions are this crate's, with the signatures that the table's type demands and NCCL's
    // contracts, and they live as long as the program.
    unsafe { libnccl::Nccl::from_table("the CPU implementation", TABLE) }.expect("ncclGetVersion answers")
}

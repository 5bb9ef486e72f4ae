//! NCCL's C ABI on the CPU, with host memory for device memory, or with [a stand-in for CUDA](#on-cuda-devices).
//!
//! Programs that use NCCL can be written and tested without a GPU: the same calls, the same results, the same errors.
//! [`TABLE`] holds the functions; this library exports none of them by name, so a program can hold it beside the real
//! NCCL.
//!
//! Ranks are threads of one process, processes of one host, or both. They find each other at an abstract Unix socket and
//! share anonymous memory, so nothing is left behind however they end. One host only: several are what NCCL is for.
//!
//! With `NCCL_COMM_ID=<address>:<port>`, each rank can create the id itself, as in NCCL. The address has to be this host's;
//! the port is only a name, and nothing listens there. Jobs of one user that run at the same time need different ones.
//! `NCCL_MULTI_RANK_GPU_ENABLE=1` allows `ncclCommInitAll` to have a device twice, as in NCCL 2.30.3 and newer.
//!
//! What differs from NCCL, by design:
//!
//! - Streams are ignored: an operation is complete when its call, or the group that it is in, returns. A send of at most
//!   64 KiB does not wait for its receiver while at most four of that length are not received, in communicators of up to
//!   31 ranks; 256 MiB are divided among the pairs of more. Longer ones wait, as do receives and collectives: the caller
//!   uses its memory right after the call, so they cannot be queued.
//! - What NCCL leaves undefined is an error: if ranks call different collectives, or sends and receives do not match, the
//!   error names the ranks and their calls. A rank that dies, aborts or leaves is an error at the ranks that wait for it.
//! - Buffers that overlap otherwise than in place are an error, whatever their size, and so is a thread that calls while
//!   another one is in a call on the same communicator. Aborts, revocations and queries may come from any thread.
//! - In a child of `fork`, the communicators and the open group of its parent are errors, and the parent keeps them. The
//!   child can make communicators of its own, unless it was forked while another thread was in a call.
//! - Devices are only numbers, except with the stand-in for CUDA. `launchCompletionEvent` is ignored.
//! - Options without a meaning here (channels, networks, thread blocks, algorithms) are checked and ignored; encryption
//!   with a key, which would have to protect something, returns `ncclInvalidUsage`.
//! - `ncclGetLastError` has a text for each thread, which lives as long as the thread, and `ncclCommGetAsyncError` copies
//!   the text of a background error to the thread that asks. A thread without an error of its own gets the latest of
//!   all. NCCL has one text, which threads overwrite.
//! - Operations on a nonblocking communicator return `ncclInProgress` and run on its thread in the order of the calls,
//!   of which any number can be made. `ncclCommGetAsyncError` returns `ncclInProgress` until all have ended, not only
//!   until they are enqueued: without a stream, nothing else could tell that the results are there. NCCL refuses calls
//!   that are made without polling; here only those are refused that have to run alone, such as `ncclCommSplit`.
//! - `ncclCommDestroy` cancels an initialisation in progress, of the communicator or of a child, as `ncclCommAbort` does.
//!   NCCL returns `ncclInvalidArgument` and frees nothing, though the handle must not be used any more after that.
//!
//! As in NCCL, a rank waits without limit for ranks that are alive and do not call. To be able to end a wait, make the
//! communicator nonblocking and abort it. `ncclCommInitRank` cannot detect the death of a rank that has not joined yet.
//!
//! A wait of 10 seconds is reported once on the standard error: which rank waits in which call, with its arguments, for
//! which ranks, what those are in or called last, and if their process is stopped. Calls are numbered from 1 on for each
//! rank and communicator, and a call of count 0 is one. `LIBNCCL_CPU_WARN_AFTER` is another
//! number of seconds, 0 for never. After `LIBNCCL_CPU_TIMEOUT` seconds the wait is an error for all ranks of the
//! communicator. While a communicator is made, both are about the ranks that have not come, or a root that does not answer.
//!
//! A collective of count 0 returns at once, as in NCCL; if only some ranks made it, the next call that they make together is
//! an error. Messages that nobody received are reported on the standard error when a rank finalizes or destroys its
//! communicator: by the receiver, and by the sender if the receiver left before. `LIBNCCL_CPU_STRICT=1` leaves out every
//! buffer that NCCL does not promise: a send returns when it has been received, the collectives of a group run before its
//! sends and receives, and calls of count 0 wait for those of the other ranks.
//!
//! `LIBNCCL_CPU_PLANT` plants faults, to test programs that look for slow and defective ranks; never set it otherwise.
//! `slow:RANK:MICROSECONDS` makes a rank sleep before each operation or group, and `wrong:RANK` flips a bit in the middle
//! element of all that it sends or contributes; several are separated by commas. The rank is that of communicators made by
//! `ncclCommInit*`, and keeps its faults in those that are split, shrunk or grown from them. A planted fault is reported
//! on the standard error. Without the variable, calls do nothing else than before.
//!
//! With `NCCL_RAS_ENABLE=1` or `NCCL_RAS_ADDR=<host>:<port>`, processes answer RAS requests, as those of NCCL do by default:
//! which ranks there are, what each has called, who is stopped or dead. `nccl ras` and NVIDIA's `ncclras` ask.
//!
//! The results are NCCL's, to the bit: the rounding of every type at every step, wrapping integers, the treatment of NaN,
//! and the order in which floats are added. `count` elements are divided into as many chunks as there are ranks, of equal
//! length rounded up to 512 bytes; chunk k begins with the value of rank k + 1 and ends with that of rank k, as in NCCL's
//! ring; a reduction to a root ends with the root's.
//!
//! Memory from `ncclMemAlloc` is shared between the ranks' processes and used without copies. Other memory is read across
//! processes or staged: one rank takes the times of both, for each function and size, and all use the one that was faster
//! lately. If one rank may not read, all stage. `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=SHM` logs the first use of each.
//! `NCCL_P2P_DISABLE=1` stages everything, and `NCCL_SHM_DISABLE=1`, at all ranks, reads everything that can be read.
//!
//! # On CUDA devices
//!
//! If the process has loaded the stand-in for CUDA, a `libcuda.so.1` that has streams and device memory and no GPU, buffers
//! are device memory and operations run on streams, as in NCCL. That is decided when a communicator is first created, or
//! memory first allocated, or the parameter `LIBNCCL_MEMORY_SPACE` first read; nothing is loaded here. Then:
//!
//! - A call, or the end of its group, returns when its operations are enqueued. Those of one communicator in a group are one
//!   job: it runs on the first of their streams, after what all of them were given before and before what they are given
//!   later. The jobs of a communicator run one after the other in the order of the calls, whatever their streams.
//! - A nonblocking call is done when it is enqueued, as `ncclCommGetAsyncError` says. `ncclCommFinalize` and
//!   `ncclCommDestroy` wait for what is enqueued; so do the calls that run on the host (windows, split, shrink, grow,
//!   suspend). `ncclCommAbort` ends it, and the streams go on; the other ranks learn of it unless all had run.
//! - A buffer has to be device memory, pinned host memory or managed memory. Other host memory, freed memory, and more
//!   bytes than were allocated are `ncclInvalidArgument` with the address and the length, where a GPU would fault.
//!   Memory of `ncclMemAlloc` is device memory that other processes can map.
//! - An error in an operation ends its communicator: it is reported on the standard error, `ncclCommGetAsyncError` returns
//!   it, and what is enqueued after it does nothing.
//! - A rank belongs to its thread's current device, and `ncclCommInitAll` sets devices by itself. Two ranks on one device are
//!   `ncclInvalidUsage` without `NCCL_MULTI_RANK_GPU_ENABLE=1`.
//! - The stand-in is told what an operation reads and writes of its rank's buffers, with the call, its rank and its number.
//!   A put's target is not among them.
//! - On a stream that is captured, a job becomes part of a CUDA graph, and runs at each launch, in the order of launches and
//!   calls. The streams of a job are all captured for one graph, or none is (`ncclInvalidUsage`). `ncclCommDestroy` waits
//!   for what was launched, not for the graph; its operations do nothing afterwards.
//!
//! # Modules
//!
//! A call goes `abi` -> `comm` -> `coll` -> `shm` and `reduce`; `bootstrap` is how ranks come to share memory, `sync` is
//! how they wait, `ras` answers questions about them, `cuda` is the stand-in for CUDA where there is one, `diag` is what they
//! report. Nothing imports upwards.
#![deny(unsafe_code)]

mod abi;
mod bootstrap;
mod coll;
mod comm;
mod cuda;
mod diag;
mod ras;
mod reduce;
mod shm;
mod sync;

#[cfg(all(test, loom))]
mod loom_models;

#[cfg(feature = "device-api")]
pub use abi::DEVICE_TABLE;
pub use abi::TABLE;

/// The program of the package's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

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

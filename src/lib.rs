//! Safe bindings to [NCCL](https://developer.nvidia.com/nccl), NVIDIA's library for collective communication between GPUs.
//! Every NCCL version from 2.13 to 2.32 can be loaded at run time or linked at build time.
//!
//! # Quick start
//!
//! [`Nccl::load`] finds and loads NCCL. This example needs no GPU: it uses the CPU backend, the crate `libnccl-cpu`.
//!
//! ```
//! use libnccl::{ReduceOp, StreamRef};
//!
//! fn main() -> libnccl::Result<()> {
//!     let nccl = libnccl_cpu::nccl(); // With GPUs: libnccl::Nccl::load()?
//!     let comms = nccl.init_all(&[0, 1])?;
//!     let mut buffers = [[1.0_f32; 3], [2.0; 3]];
//!     nccl.group(|g| {
//!         for (comm, buffer) in comms.iter().zip(&mut buffers) {
//!             comm.all_reduce_in_place(buffer, ReduceOp::Sum, g.stream(StreamRef::DEFAULT))?;
//!         }
//!         Ok(())
//!     })?;
//!     assert_eq!(buffers, [[3.0; 3]; 2]);
//!     Ok(())
//! }
//! ```
//!
//! If each rank has its own process or thread, one rank creates a [`UniqueId`], and all ranks pass it to [`Nccl::communicator`].
//! Operations are methods of [`Communicator`], and their last argument is the stream. In a group, pass the stream through
//! [`Group::stream`]: the group's operations then start together.
//!
//! On GPUs, a buffer is a [`Slice`], a [`SliceMut`], or any type that implements [`buffer::Buffer`] or
//! [`buffer::BufferMut`]. A stream is a [`StreamRef`], or any type that implements [`Stream`].
//!
//! # The contract between ranks
//!
//! All ranks must call the same collectives in the same order, and each send must have a matching receive; see
//! [`Communicator`](Communicator#the-contract-between-ranks).
//!
//! # Errors
//!
//! Invalid input causes an error, not a panic. The [`Error`] names the call, the values and what was expected. If the loaded
//! library lacks a function, and libnccl cannot replace it by other functions, the call returns [`Error::Unsupported`], which
//! contains the first version with the function.
//!
//! A call that blocks the host for longer than [`Config::timeout`], for example because a rank is missing, returns
//! [`Error::Timeout`]. On GPUs, operations return when they are enqueued; to wait for their stream with a timeout, use
//! [`Communicator::synchronize`]. To record or time operations, add an [`Observer`](observer::Observer): your own, or the
//! recorder of `libnccl-observe`.
//!
//! # Features
//!
//! | feature | enables |
//! |---|---|
//! | `dlopen` (default) | finding and loading NCCL at run time |
//! | `link` | linking NCCL at build time |
//! | `bindgen` (default) | generating the bindings at build time |
//! | `half`, `float8` | element types of the crates with these names |
//! | `cudarc`, `cuda-core` | buffers and streams of these crates |
//! | `serde` | serializing [`UniqueId`], as text |
//! | `device-api` | the raw host functions of NCCL's device API |
//!
//! # Related crates
//!
//! | crate | purpose |
//! |---|---|
//! | `libnccl-cpu` | an implementation of NCCL on host memory, for tests and machines without a GPU |
//! | `libnccl-launch` | reads rank and size from the launcher's environment, and exchanges the unique id |
//! | `libnccl-observe` | a recorder, a watchdog, logs, spans, and a client of NCCL's RAS service |
//!
//! # More
//!
#![doc = concat!("[Building and linking](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/building.md),")]
#![doc = concat!("[when a job hangs](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/hangs.md),")]
#![doc = concat!("[migrating from another binding](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/migration.md),")]
#![doc = concat!("[soundness](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/soundness.md),")]
#![doc = concat!("[what a version promises](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/semver.md).")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))] // `environment` reads variables.

mod backend;
pub mod buffer;
pub mod communicator;
pub mod config;
mod cuda;
mod data_type;
mod dynamic_linker;
mod environment;
pub mod error;
mod group;
mod interop;
mod nccl;
pub mod observer;
mod operation;
mod parameters;
mod places;
mod reduce_op;
mod stream;
pub mod sys;
mod unique_id;
mod values;
mod version;
pub mod window;

pub use backend::Backend;
pub use buffer::{NcclBuffer, Slice, SliceMut};
pub use communicator::Communicator;
pub use config::Config;
pub use cuda::Context;
pub use data_type::{DataType, Element};
pub use error::{Error, Result};
pub use group::Group;
pub use nccl::{Function, Nccl};
pub use operation::{CallOptions, OnStream};
pub use parameters::{ParameterValue, Parameters};
pub use reduce_op::{Operator, PreMulSum, ReduceOp};
pub use stream::{Stream, StreamRef};
pub use unique_id::UniqueId;
pub use version::Version;

/// Items for the other crates of this project. Not covered by semantic versioning.
#[doc(hidden)]
pub mod internal {
    pub use crate::backend::PATH_VARIABLE;
    pub use crate::dynamic_linker::keep_loaded;
    /// Environment variables.
    pub mod environment {
        pub use crate::environment::*;
    }
    /// Locations of NCCL libraries.
    pub mod places {
        pub use crate::places::*;
    }
    /// Items for the interposer `libnccl-trace.so`.
    pub mod interposer {
        #[cfg(all(feature = "dlopen", target_os = "linux"))]
        pub use crate::backend::dlopen::{file_of_code, load_functions};
        #[cfg(all(feature = "dlopen", target_os = "linux"))]
        pub use crate::backend::search::{Candidate, candidates};
        pub use crate::backend::{Found, comm_hash, lock_parameters, memory_space};
        pub use crate::dynamic_linker::mapped_files;
        #[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
        pub use crate::dynamic_linker::search::files;
    }
}

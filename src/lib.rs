//! Safe bindings of [NCCL](https://developer.nvidia.com/nccl), NVIDIA's library for collective communication between GPUs: loaded
//! at run time or linked, for every release from 2.13 to 2.32.
//!
//! # Quick start
//!
//! [`Nccl::load`] finds the library. Here the crate `libnccl-cpu`, NCCL on host memory, takes its place:
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
//! A process or thread for each rank calls [`Nccl::communicator`] with the [`UniqueId`] that one of them has made. Operations are
//! methods of [`Communicator`], which take a stream; with [`Group::stream`], they start together. On GPUs, buffers are [`DeviceSlice`] and [`DeviceSliceMut`], or
//! types that implement [`Buffer`] and [`BufferMut`]; streams are [`StreamRef`], or types that implement [`Stream`].
//!
//! # The contract between ranks
//!
//! All ranks of a communicator call the same operations in the same order, with the same counts, element types, roots and
//! reductions. NCCL does not compare them, and may hang or give wrong results; the CPU implementation compares them, and names the
//! rank that differs. An operation on a GPU returns when its work is enqueued: the buffers stay borrowed during the call, and are
//! used until the stream has run it.
//!
//! # Errors
//!
//! Nothing panics. [`Error`] names the call, the values and what was expected; a function that the loaded library lacks is
//! [`Error::Unsupported`], with the first release that has it. [`Config::timeout`] turns waiting for a missing rank into
//! [`Error::Timeout`]; an [`Observer`] sees what ranks do: one of your own, or a recorder or a watchdog of `libnccl-observe`.
//!
//! # Features
//!
//! | feature | what |
//! |---|---|
//! | `dlopen` (default) | find and load NCCL at run time |
//! | `link` | link NCCL at build time |
//! | `bindgen` (default) | generate the bindings in the build |
//! | `half`, `float8` | element types of the crates of these names |
//! | `cudarc`, `cuda-core` | buffers and streams of these crates |
//! | `serde` | [`UniqueId`] as text |
//! | `device-api` | the raw host functions of NCCL's device API |
//!
//! # Crates on this one
//!
//! | crate | what |
//! |---|---|
//! | `libnccl-cpu` | NCCL on host memory, for tests and machines without a GPU |
//! | `libnccl-launch` | find the ranks that a launcher has started, and exchange the id |
//! | `libnccl-observe` | a recorder, a watchdog, logs, spans, and a client of NCCL's RAS service |
//!
//! # More
//!
#![doc = concat!("[Building and linking](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/building.md),")]
#![doc = concat!("[when a job hangs](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/hangs.md),")]
#![doc = concat!("[coming from another binding](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/migration.md),")]
#![doc = concat!("[soundness](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/soundness.md),")]
#![doc = concat!("[what a version promises](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/semver.md).")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))] // `environment` reads variables.

mod backend;
mod buffer;
mod communicator;
mod config;
mod context;
mod cuda;
mod data_type;
mod dynamic_linker;
mod encryption;
#[doc(hidden)] // For the crates on this one.
pub mod environment;
mod error;
#[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
mod forwarded;
mod group;
mod interop;
mod nccl;
mod observer;
mod operation;
mod parameters;
#[doc(hidden)] // For the tool.
pub mod places;
mod reduce_op;
mod registration;
mod stream;
pub mod sys;
mod unique_id;
#[cfg(feature = "serde")]
mod unique_id_serde;
mod values;
mod version;
mod window;

pub use backend::Backend;
#[doc(hidden)] // The tool sets it.
pub use backend::PATH_VARIABLE;
pub use buffer::{
    AnyBuffer, AnyElement, AnySlice, AnySliceMut, Buffer, BufferElement, BufferMut, BufferResult,
    DeviceSlice, DeviceSliceMut, MemorySpace, NcclBuffer, NcclSlice, NcclSliceMut, RecvBuffer, SendBuffer,
    Stream,
};
pub use communicator::{
    AbortHandle, ChildBuilder, Communicator, CommunicatorBuilder, Finalized, Health, MemoryStatistic,
    PendingCommunicator, Properties, ShrinkMode,
};
pub use config::{CollectiveConfig, Config, CtaPolicy, GraphUsageMode, HostCftMode, NvlsHostMode};
pub use context::Context;
pub use data_type::{DataType, Element, ParseDataTypeError};
#[doc(hidden)] // For the crates on this one.
pub use dynamic_linker::keep_loaded;
pub use encryption::Encryption;
pub use error::{Attempt, Error, InvalidArgumentKind, LoadError, Result, ResultCode};
#[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
pub use forwarded::{Forwarded, forwarded};
pub use group::Group;
#[cfg(feature = "cuda-core")]
pub use interop::CudaCoreGuard;
#[cfg(feature = "cudarc")]
pub use interop::CudaGuard;
pub use nccl::{Function, Nccl};
pub use observer::{
    CallWord, CommunicatorEvent, CommunicatorId, Membership, Observer, OperationEnd, OperationStart, observe,
};
pub use operation::{
    CallOptions, Extent, OnStream, Operation, Operator, PreMulSum, Role, Signal, WaitSignal,
};
pub use parameters::{ParameterValue, Parameters};
pub use reduce_op::{ParseReduceOpError, ReduceOp};
pub use registration::Registration;
pub use stream::StreamRef;
pub use unique_id::{ParseUniqueIdError, UniqueId};
pub use version::{ParseVersionError, Version};

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
pub use window::{Window, WindowFlags, WindowOffset};

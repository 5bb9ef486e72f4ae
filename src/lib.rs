// The README's relative links lead nowhere outside of a checkout. Of two definitions of a link, Markdown takes the
// first.
#![cfg_attr(doc, doc = concat!("[apache]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/LICENSE-APACHE"))]
#![cfg_attr(doc, doc = concat!("[benchmark]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/benchmark.md"))]
#![cfg_attr(doc, doc = concat!("[building]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/building.md"))]
#![cfg_attr(doc, doc = concat!("[changelog]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/CHANGELOG.md"))]
#![cfg_attr(doc, doc = concat!("[comparison]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/comparison.md"))]
#![cfg_attr(doc, doc = concat!("[compatibility]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/compatibility.md"))]
#![cfg_attr(doc, doc = concat!("[consumers]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/migration/consumers.md"))]
#![cfg_attr(doc, doc = concat!("[contributing]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/CONTRIBUTING.md"))]
#![cfg_attr(doc, doc = concat!("[coverage]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/coverage.md"))]
#![cfg_attr(doc, doc = concat!("[cpu-performance]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/cpu-performance.md"))]
#![cfg_attr(doc, doc = concat!("[cuda-stand-in]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/cuda-stand-in.md"))]
#![cfg_attr(doc, doc = concat!("[design]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/design.md"))]
#![cfg_attr(doc, doc = concat!("[doctor]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/doctor.md"))]
#![cfg_attr(doc, doc = concat!("[examples]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/examples/README.md"))]
#![cfg_attr(doc, doc = concat!("[faults]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/faults.md"))]
#![cfg_attr(doc, doc = concat!("[frameworks]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/migration/frameworks.md"))]
#![cfg_attr(doc, doc = concat!("[from-baracuda]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/migration/baracuda.md"))]
#![cfg_attr(doc, doc = concat!("[from-c]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/migration/c.md"))]
#![cfg_attr(doc, doc = concat!("[from-cudarc]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/migration/cudarc.md"))]
#![cfg_attr(doc, doc = concat!("[from-ferrotorch]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/migration/ferrotorch.md"))]
#![cfg_attr(doc, doc = concat!("[from-go]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/migration/go.md"))]
#![cfg_attr(doc, doc = concat!("[from-python]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/migration/python.md"))]
#![cfg_attr(doc, doc = concat!("[launching]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/launching.md"))]
#![cfg_attr(doc, doc = concat!("[mit]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/LICENSE-MIT"))]
#![cfg_attr(doc, doc = concat!("[nccl-quirks]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/nccl-quirks.md"))]
#![cfg_attr(doc, doc = concat!("[overhead]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/overhead.md"))]
#![cfg_attr(doc, doc = concat!("[platforms]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/platforms.md"))]
#![cfg_attr(doc, doc = concat!("[ras]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/ras.md"))]
#![cfg_attr(doc, doc = concat!("[recorder]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/recorder.md"))]
#![cfg_attr(doc, doc = concat!("[recovery]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/recovery.md"))]
#![cfg_attr(doc, doc = concat!("[security]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/SECURITY.md"))]
#![cfg_attr(doc, doc = concat!("[semver]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/semver.md"))]
#![cfg_attr(doc, doc = concat!("[soundness]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/soundness.md"))]
#![cfg_attr(doc, doc = concat!("[trace]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/trace.md"))]
#![cfg_attr(doc, doc = concat!("[what-it-finds]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/what-it-finds.md"))]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod backend;
mod buffer;
mod communicator;
mod config;
mod context;
mod cuda;
mod data_type;
mod dynamic_linker;
mod encryption;
mod error;
#[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
mod forwarded;
mod group;
mod interop;
#[cfg(feature = "launch")]
pub mod launch;
mod nccl;
mod observer;
mod operation;
mod parameters;
#[cfg(feature = "ras")]
pub mod ras;
mod recorder;
mod reduce_op;
mod registration;
mod releases_of_values;
mod stream;
pub mod sys;
mod unique_id;
#[cfg(feature = "serde")]
mod unique_id_serde;
mod version;
mod watchdog;

pub use backend::Backend;
pub use buffer::{
    AnyBuffer, AnyElement, AnySlice, AnySliceMut, Buffer, BufferElement, BufferMut, BufferResult,
    DeviceSlice, DeviceSliceMut, MemorySpace, NcclBuffer, NcclSlice, NcclSliceMut, RecvBuffer, SendBuffer,
    Stream,
};
pub use communicator::{
    AbortHandle, BorrowedCommunicator, Communicator, Finalized, MemoryStatistic, PendingCommunicator,
    Properties, ShrinkMode,
};
pub use config::{CollectiveConfig, Config, CtaPolicy, GraphUsageMode, HostCftMode, NvlsHostMode};
pub use context::Context;
pub use data_type::{DataType, Element, ParseDataTypeError};
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
    CommunicatorEvent, CommunicatorId, Membership, Observer, OperationEnd, OperationStart, observe,
};
pub use operation::{
    Extent, Grouped, Grouping, Operation, Operations, OwnedPreMulSum, PreMulSum, PreMulSumOperations, Role,
    Signal, Ungrouped, WaitSignal, WindowOffset,
};
pub use parameters::{ParameterValue, Parameters};
pub use recorder::{Record, RecordState, Recorder};
pub use reduce_op::{ParseReduceOpError, ReduceOp};
pub use registration::{OwnedRegistration, OwnedWindow, Registration, Window, WindowFlags};
pub use stream::StreamRef;
pub use unique_id::{ParseUniqueIdError, UniqueId};
pub use version::{ParseVersionError, Version};
pub use watchdog::{Answer, Cause, Finding, Watchdog};

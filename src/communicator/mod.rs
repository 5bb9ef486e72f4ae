//! A communicator, its operations, and the objects that belong to it.
#![allow(unsafe_code)]

mod abort_handle;
mod arguments;
mod barrier;
mod borrowed;
mod call_recorder;
mod collectives;
mod create_child;
mod destroy;
mod futures;
mod grouping;
mod handle;
mod helper_thread;
mod identity;
mod init;
#[cfg(all(test, loom))]
mod loom_models;
mod memory_usage;
mod one_sided;
mod operation_methods;
mod operations;
mod out_param;
mod owned_pre_mul_sum;
mod owned_registration;
mod owned_window;
mod pending;
mod point_to_point;
mod pre_mul_sum;
mod properties;
mod recorder;
mod recording;
mod recovery;
mod registration;
mod shared;
#[cfg(any(feature = "log", feature = "tracing"))]
mod span;
mod split;
mod state;
mod synchronize;
mod timer;
mod vector_collectives;
mod watchdog;
mod window;

pub use abort_handle::AbortHandle;
pub use borrowed::BorrowedCommunicator;
pub use call_recorder::{CallArguments, CallRecorder, GroupPlace, Operation};
pub use destroy::Finalized;
pub use grouping::{Grouped, Grouping, Ungrouped};
pub use handle::Communicator;
pub use memory_usage::MemoryStatistic;
pub use one_sided::{Signal, WaitSignal};
pub use operations::Operations;
pub use owned_pre_mul_sum::OwnedPreMulSum;
pub use owned_registration::OwnedRegistration;
pub use owned_window::OwnedWindow;
pub use pending::PendingCommunicator;
pub(crate) use pending::PendingHandle;
pub use pre_mul_sum::{PreMulSum, PreMulSumOperations};
pub use properties::Properties;
pub use recorder::Recorder;
pub use recovery::ShrinkMode;
pub use registration::Registration;
pub use watchdog::{Answer, Cause, Finding, Watchdog};
pub use window::{Window, WindowFlags, WindowOffset};

//! A communicator, its operations, and the objects that belong to it.
#![allow(unsafe_code)]

mod abort_handle;
mod arguments;
mod barrier;
mod borrowed;
mod collectives;
mod create_child;
mod destroy;
mod futures;
mod grouping;
mod handle;
mod helper_thread;
mod init;
mod memory_usage;
mod one_sided;
mod operation_methods;
mod operations;
mod out_param;
mod pending;
mod point_to_point;
mod pre_mul_sum;
mod properties;
mod recovery;
mod registration;
mod shared;
mod split;
mod state;
mod timer;
mod window;

pub use abort_handle::AbortHandle;
pub use borrowed::BorrowedCommunicator;
pub use destroy::Finalized;
pub use grouping::{Grouped, Grouping, Ungrouped};
pub use handle::Communicator;
pub use memory_usage::MemoryStatistic;
pub use one_sided::{Signal, WaitSignal};
pub use operations::Operations;
pub use pending::PendingCommunicator;
pub(crate) use pending::PendingHandle;
pub use pre_mul_sum::{PreMulSum, PreMulSumOperations};
pub use properties::Properties;
pub use recovery::ShrinkMode;
pub use registration::Registration;
pub use window::{Window, WindowFlags, WindowOffset};

//! Observers, which are notified of operations and of the lifecycle of communicators, and the descriptors of operations.

mod call_word;
mod catch_panic;
mod communicator_id;
mod event;
mod membership;
#[allow(clippy::module_inception)] // The trait has the name of the module.
mod observer;
mod observers;
mod operation;
mod process;

pub use call_word::CallWord;
pub use communicator_id::CommunicatorId;
pub use event::{CommunicatorEvent, OperationEnd, OperationStart};
pub use membership::Membership;
pub use observer::Observer;
pub(crate) use observers::{Given, Observed, Observers};
pub use operation::{Extent, Operation, Role};
pub use process::observe;
pub(crate) use process::of_process;

//! The observers of communicators, and what they are told. Communicators know them, and no observer in particular.

mod call_word;
mod catch_panic;
mod communicator_id;
mod event;
mod membership;
#[allow(clippy::module_inception)] // The trait has the name of the module.
mod observer;
mod observers;
mod process;

pub use call_word::CallWord;
pub use communicator_id::CommunicatorId;
pub use event::{CommunicatorEvent, OperationEnd, OperationStart};
pub use membership::Membership;
pub use observer::Observer;
pub(crate) use observers::{Given, Observed, Observers};
pub use process::observe;
pub(crate) use process::of_process;

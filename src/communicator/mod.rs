//! Communicators: their creation, children, state, teardown and queries. Operations are methods of [`Communicator`] too.
#![allow(unsafe_code)]

mod abort_handle;
mod builder;
#[allow(clippy::module_inception)] // The type has the name of the module.
mod communicator;
mod create_child;
mod destroy;
mod helper_thread;
mod inside;
#[cfg(all(test, loom))]
mod loom_models;
mod memory_usage;
mod object;
mod out_param;
mod pending;
mod properties;
mod recovery;
mod shared;
mod split;
mod state;
mod synchronize;

pub use abort_handle::{AbortHandle, Health};
pub use builder::{ChildBuilder, CommunicatorBuilder};
pub use communicator::Communicator;
pub(crate) use communicator::wait_until;
pub use destroy::Finalized;
pub(crate) use inside::{Inside, check_no_open_group, set_open_group};
pub use memory_usage::MemoryStatistic;
pub(crate) use object::{Handle, Object, OwnedObject, WindowHandle};
pub use pending::PendingCommunicator;
pub(crate) use pending::PendingHandle;
pub use properties::Properties;
pub use recovery::ShrinkMode;
pub(crate) use shared::Shared;
pub(crate) use state::Purpose;

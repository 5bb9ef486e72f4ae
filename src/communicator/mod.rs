//! A communicator: its state, its creation, its children, its end, and what it registers. Its operations are in
//! [`operation`](crate::operation), its groups in [`group`](crate::group).
#![allow(unsafe_code)]

mod abort_handle;
mod arguments;
mod borrowed;
#[allow(clippy::module_inception)] // The type has the name of the room.
mod communicator;
mod create_child;
mod destroy;
mod futures;
mod helper_thread;
mod init;
#[cfg(all(test, loom))]
mod loom_models;
mod memory_usage;
mod open_group;
mod out_param;
mod owned_registration;
mod pending;
mod properties;
mod recovery;
mod registration;
mod shared;
mod split;
mod state;
mod synchronize;
mod timer;

pub use abort_handle::AbortHandle;
pub(crate) use arguments::{check_buffers, check_devices, to_c_rank};
pub use borrowed::BorrowedCommunicator;
pub use communicator::Communicator;
pub use destroy::Finalized;
pub use memory_usage::MemoryStatistic;
pub(crate) use open_group::{check_no_open_group, set_open};
pub(crate) use out_param::OutParam;
pub use owned_registration::OwnedRegistration;
pub use pending::PendingCommunicator;
pub(crate) use pending::PendingHandle;
pub use properties::Properties;
pub use recovery::ShrinkMode;
pub use registration::Registration;
pub(crate) use registration::{DEREGISTER, leak, ok_if_freed};
pub(crate) use shared::{Inside, Shared};
pub(crate) use state::Purpose;

//! Communicators and their builders. Operations are methods of [`Communicator`].

// - `communicator.rs`: the type, raw handles, and how operations and groups enter NCCL
// - `create.rs`, `children.rs`, `teardown.rs`, `queries.rs`: the methods by topic
// - `shared.rs`, `state.rs`: the state shared with other threads, the RAII guard of a call, and which thread may enter NCCL
// - `objects.rs`: the teardown of registrations, windows and operators

mod children;
#[allow(clippy::module_inception)] // The type has the name of the module.
mod communicator;
mod create;
#[cfg(all(test, loom))]
#[path = "../../tests/models/communicator.rs"]
mod loom_models;
mod objects;
mod queries;
mod shared;
mod state;
mod teardown;

pub use children::{ChildBuilder, ShrinkMode};
pub use communicator::Communicator;
pub(crate) use communicator::wait_until;
pub use create::{CommunicatorBuilder, PendingCommunicator};
pub(crate) use create::{PendingHandle, to_c_int, to_c_length};
pub(crate) use objects::{Handle, Object, OwnedObject, WindowHandle};
pub use queries::{MemoryStatistic, Properties};
pub(crate) use shared::{CallGuard, HAS_OPEN_GROUP, Shared, check_no_open_group};
pub(crate) use state::Purpose;
pub use teardown::{AbortHandle, Finalized, Health};

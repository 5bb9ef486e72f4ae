//! Communicators. Operations are methods of [`Communicator`] too.
//!
//! - `communicator.rs`: the type, raw handles, and how operations and groups enter NCCL
//! - `create.rs`, `children.rs`, `teardown.rs`, `queries.rs`: the methods by topic
//! - `shared.rs`, `state.rs`, `call_guard.rs`: what other threads share, which thread may enter NCCL, and the RAII guard of a call
//! - `objects.rs`: the teardown of registrations, windows and reductions

mod call_guard;
mod children;
#[allow(clippy::module_inception)] // The type has the name of the module.
mod communicator;
mod create;
#[cfg(all(test, loom))]
mod loom_models;
mod objects;
mod queries;
mod shared;
mod state;
mod teardown;

pub(crate) use call_guard::{CallGuard, check_no_open_group, set_open_group};
pub use children::{ChildBuilder, ShrinkMode};
pub use communicator::Communicator;
pub(crate) use communicator::wait_until;
pub use create::{CommunicatorBuilder, PendingCommunicator};
pub(crate) use create::{PendingHandle, to_c_int, to_c_length};
pub(crate) use objects::{Handle, Object, OwnedObject, WindowHandle};
pub use queries::{MemoryStatistic, Properties};
pub(crate) use shared::Shared;
pub(crate) use state::Purpose;
pub use teardown::{AbortHandle, Finalized, Health};

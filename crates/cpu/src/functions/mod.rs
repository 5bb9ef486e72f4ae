//! NCCL's functions as C calls them, a file for each family in the order of `nccl.h`.
//!
//! A file has the C functions of its family, the checks of their arguments, and the operations that they start. Modules below
//! have no C functions: `comm` has communicators and groups, `coll` the plan and the transports of collectives, `shm` what
//! ranks share.
//!
//! # Safety
//!
//! The contract of every function here is the contract of its C declaration: a pointer that is not NULL points to what the
//! header says, and buffers stay valid until the call, or the group that it is in, has ended; on a stream, until the stream has
//! run it. Addresses of device memory are buffers too; they are not dereferenced before they are resolved.

mod children;
mod collectives;
#[cfg(feature = "device-api")]
mod device_api;
mod groups;
mod guard;
mod init;
mod memory;
pub(crate) mod one_sided;
mod parameters;
pub(crate) mod point_to_point;
mod queries;
mod reductions;
mod table;
mod teardown;
mod windows;

pub use queries::ncclResetDebugInit;
#[cfg(feature = "device-api")]
pub use table::DEVICE_TABLE;
pub use table::TABLE;

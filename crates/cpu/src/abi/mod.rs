//! NCCL's functions as C calls them.
//!
//! In: raw pointers and numbers. Out: result codes, and the text for `ncclGetLastError`. Arguments are checked here and
//! become safe types; a call's communicator is resolved here once; then the rest of the crate runs it. Every other room
//! may be used here, and nothing may use this one.
//!
//! # Safety
//!
//! The contract of every function here is its C declaration's: a pointer that is not NULL points to what the header
//! says, and buffers stay valid until the call, or the group that it is in, has ended; on a stream, until the stream has
//! run it. The addresses of device memory are buffers too, which nothing follows before they are resolved.

mod child;
mod collective_config;
mod collectives;
mod config;
#[cfg(feature = "device-api")]
mod device_communicator;
mod encryption;
mod ffi_guard;
mod group;
mod grow;
mod init;
mod memory;
mod one_sided;
mod param_registry;
mod parameters;
mod point_to_point;
#[cfg(feature = "device-api")]
mod properties;
mod query;
mod red_op;
mod shrink;
mod split;
mod suspend;
mod table;
#[cfg(feature = "device-api")]
mod team;
mod teardown;
mod window;
#[cfg(feature = "device-api")]
mod window_address;

pub use query::ncclResetDebugInit;
#[cfg(feature = "device-api")]
pub use table::DEVICE_TABLE;
pub use table::TABLE;

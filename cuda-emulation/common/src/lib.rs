//! Code that the CUDA emulation and the libraries on top of it share.
//!
//! - [`Interface`]: the functions that the emulated driver adds to CUDA's, for libraries whose operations run on its streams.
//! - [`finding`], [`stack`] and [`fault_signal`]: how problems of a program are reported. Each library has its own copy of
//!   their state; the environment variables are the same.
//!
//! An implementation detail of libnccl: it has no stable API.

#![deny(unsafe_code)]

pub mod fault_signal;
pub mod finding;
mod interface;
mod open;
pub mod stack;
mod unsupported;

pub use interface::{
    Access, AccessKind, Device, FreeCheck, Interface, Memory, MemoryKind, Work, device_name,
};
pub use open::{object_of, open as open_driver};
pub use unsupported::{report_as, report_unsupported};

//! The only place that knows whether NCCL is linked, loaded or already in this process.
//!
//! Every backend ends in a [`Library`]: a function table and its properties. All other code uses only that.
#![allow(unsafe_code)]

mod cuda_context;
mod cuda_device;
mod cuda_driver;
mod cuda_stream;
#[cfg(feature = "dlopen")]
mod dlopen;
#[cfg(feature = "dlopen")]
mod elf;
#[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
mod forwarded;
mod kind;
mod library;
#[cfg(nccl_linked)]
mod linked;
#[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
mod linker;
mod mapped;
#[cfg(all(target_os = "linux", any(feature = "dlopen", all(nccl_linked, not(nccl_archive)))))]
mod object;
#[cfg(all(feature = "dlopen", any(not(nccl_linked), all(target_os = "linux", target_env = "gnu"))))]
mod search;

pub(crate) use cuda_context::CudaContext;
pub(crate) use cuda_device::{current_device, device_of_memory};
pub(crate) use cuda_stream::is_stream_complete;
#[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
pub use forwarded::{Forwarded, forwarded};
pub use kind::Backend;
pub(crate) use library::{Library, call};

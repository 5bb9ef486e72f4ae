//! The only place that knows whether NCCL is linked, loaded or already in this process.
//!
//! Each backend fills one table, [`Functions`](crate::sys::Functions), and all other code calls NCCL through that:
//!
//! | backend | its functions come from |
//! |---|---|
//! | linked (`linked.rs`) | bindgen's `extern` block, [`sys::linked`](crate::sys), for all that NCCL 2.13.4 has; newer ones are looked up in the same library, which need not have them |
//! | loaded (`dlopen.rs`) | the fields of bindgen's struct, `sys::dynamic::NcclLibrary`; where it is found: `search.rs` |
//! | in process | the implementation, which brings its table: [`Nccl::from_table`](crate::nccl::Nccl::from_table) |
//!
//! The result is a [`Library`]: the table and what is known of the implementation.
#![allow(unsafe_code)]

#[cfg(feature = "dlopen")]
pub(crate) mod dlopen;
mod kind;
mod library;
#[cfg(nccl_linked)]
mod linked;
mod open_groups;
mod parameter_lock;
#[cfg(all(feature = "dlopen", any(not(nccl_linked), all(target_os = "linux", target_env = "gnu"))))]
pub(crate) mod search;

pub use kind::{Backend, MemorySpace};
#[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
pub(crate) use library::memory_space;
pub(crate) use library::{Found, Library, call};
pub(crate) use parameter_lock::{ParameterGuard, lock_parameters};

/// Functions by which a library is known that dereferences a null communicator instead of refusing it, whatever its name is:
/// one of HIP, which AMD's RCCL needs, and one that NCCL does not have, but Meta's NCCLX and the shim of MSCCL++.
#[cfg(any(feature = "dlopen", all(nccl_linked, not(nccl_archive))))]
const OF_OTHERS: [&std::ffi::CStr; 2] = [c"hipGetDeviceCount", c"ncclAllToAllv"];

/// The file of the library, which is then not searched. Default: the search.
pub const PATH_VARIABLE: &str = "LIBNCCL_PATH";

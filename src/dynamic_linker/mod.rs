//! The dynamic linker of this process: what it has loaded, where it searches, and what it could map.
#![allow(unsafe_code)]

#[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
pub(crate) mod bare_name;
#[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
mod cache;
#[cfg(feature = "dlopen")]
pub(crate) mod elf;
pub(crate) mod mapped;
#[cfg(target_os = "linux")]
mod object;
#[cfg(target_os = "linux")]
mod scope;

#[cfg(all(target_os = "linux", any(feature = "dlopen", all(nccl_linked, not(nccl_archive)))))]
pub(crate) use object::Object;
#[cfg(target_os = "linux")]
pub use object::keep_loaded;
#[cfg(target_os = "linux")]
pub(crate) use scope::Scope;

/// Does nothing: which objects the dynamic linker unloads is known of Linux alone.
#[cfg(not(target_os = "linux"))]
pub fn keep_loaded() {}

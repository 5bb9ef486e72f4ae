//! The way to a library: what is linked, what is searched for and opened, and AMD's RCCL in its place.

mod bindings;
mod linking;
#[cfg(all(feature = "dlopen", target_os = "linux"))]
mod rccl;
#[cfg(all(feature = "dlopen", target_os = "linux"))]
mod rccl_library;
#[cfg(all(feature = "dlopen", target_os = "linux"))]
mod search;

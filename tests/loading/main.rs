//! Linking, searching for and opening a library; AMD's RCCL instead of NCCL.

#[cfg(all(feature = "dlopen", target_os = "linux"))]
mod candidates;
mod linking;
#[cfg(all(feature = "dlopen", target_os = "linux"))]
mod rccl;
#[cfg(all(feature = "dlopen", target_os = "linux"))]
mod rccl_library;
#[cfg(all(feature = "dlopen", target_os = "linux"))]
mod search;

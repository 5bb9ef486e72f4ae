//! The exact C calls that the safe layer makes: for each method, for any result and output of NCCL, and for each kind of
//! teardown.

#[cfg(all(feature = "dlopen", target_os = "linux"))]
mod cuda_context;
#[cfg(target_os = "linux")]
mod error_texts;
mod faults;
mod fixture;
mod groups;
mod guards;
mod memory;
mod methods;
mod options;
#[cfg(target_os = "linux")]
mod own_process;
mod parameters;
mod teardown;
mod waiting;

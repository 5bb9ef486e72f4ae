//! The exact C calls that the safe layer makes: for each method, for each code that NCCL may return, and for each
//! way in which a communicator may end.

mod codes;
#[cfg(target_os = "linux")]
mod cuda_context;
#[cfg(target_os = "linux")]
mod dropped_futures;
mod endings;
mod fixture;
mod futures;
mod groups;
mod guards;
mod memory;
mod methods;
#[cfg(target_os = "linux")]
mod own_process;
mod waiting;

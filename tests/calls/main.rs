//! The exact C calls that the safe layer makes: for each method, for whatever NCCL returns and writes, and for each way in
//! which a communicator may end.

mod codes;
#[cfg(target_os = "linux")]
mod cuda_context;
#[cfg(target_os = "linux")]
mod dropped_futures;
mod endings;
mod faults;
mod fixture;
mod futures;
mod groups;
mod guards;
mod memory;
mod methods;
#[cfg(target_os = "linux")]
mod own_process;
mod waiting;

//! The exact C calls that the safe layer makes: for each method, for anything that NCCL returns and writes, and for each way in
//! which a communicator may end.

#[cfg(target_os = "linux")]
mod cuda_context;
mod endings;
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
mod waiting;

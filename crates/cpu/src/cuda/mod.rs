//! CUDA, where the process has the stand-in for it: device memory, streams and events.
//!
//! The stand-in is a `libcuda.so.1` with functions that no driver has. A process that has loaded it has device memory,
//! and its communicators run their operations on streams. This crate loads nothing: a program that uses CUDA has loaded
//! it before it passes the first memory to a communicator, which decides.

pub(crate) mod driver;

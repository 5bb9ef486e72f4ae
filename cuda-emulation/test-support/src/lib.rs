//! Helpers of the tests of the CUDA emulation, and of the tests of libraries on top of it.

#![allow(missing_docs)] // the names say it

pub mod random;
pub mod toolkit;

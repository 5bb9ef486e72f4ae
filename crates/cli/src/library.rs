//! The library that the command line asks for.
#![allow(unsafe_code)]

use std::path::Path;

use libnccl::{LoadError, Nccl};

/// The file that the user named, or what the system has.
pub(crate) fn load(path: Option<&Path>) -> Result<Nccl, LoadError> {
    match path {
        // SAFETY: whoever runs this program names the file as an NCCL library, as they might name a program.
        Some(path) => unsafe { Nccl::open(path) },
        None => Nccl::load(),
    }
}

//! Loading of the NCCL library.
#![allow(unsafe_code)]

use std::path::Path;

use libnccl::{LoadError, Nccl};

/// Loads the file that the user named, or searches the system for a library.
pub(crate) fn load(path: Option<&Path>) -> Result<Nccl, LoadError> {
    match path {
        // SAFETY: the user vouches that the file is an NCCL library, as they do for a program that they start.
        Some(path) => unsafe { Nccl::open(path) },
        None => Nccl::load(),
    }
}

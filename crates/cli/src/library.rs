//! Loading of the NCCL library.
#![allow(unsafe_code)]

use std::path::Path;

use libnccl::{Attempt, LoadError, Nccl};

/// The environment variable with which a user names the library.
pub(crate) const PATH_VARIABLE: &str = "LIBNCCL_PATH";

/// Loads the file that the user named, or searches the system for a library.
pub(crate) fn load(path: Option<&Path>) -> Result<Nccl, LoadError> {
    match path {
        // SAFETY: the user vouches that the file is an NCCL library, as they do for a program that they start.
        Some(path) => unsafe { Nccl::open(path) },
        None => Nccl::load(),
    }
}

/// Returns `true` if `LIBNCCL_PATH` named the library of this attempt.
pub(crate) fn is_named_by_variable(attempt: &Attempt) -> bool {
    attempt.source == PATH_VARIABLE && !attempt.path.as_os_str().is_empty()
}

//! Loading of the NCCL library.
#![allow(unsafe_code)]

use std::path::Path;

use anyhow::Result;
#[cfg(not(feature = "link"))]
use anyhow::bail;
use libnccl::error::{Attempt, LoadError};
use libnccl::{Backend, Nccl};

use crate::gpu::reason;

/// Loads the file that the user named, or searches the system for a library.
pub(crate) fn load(path: Option<&Path>) -> Result<Nccl, LoadError> {
    match path {
        // SAFETY: the user vouches that the file is an NCCL library, as they do for a program that they start.
        Some(path) => unsafe { Nccl::open(path) },
        None => Nccl::load(),
    }
}

/// Does the same. Returns `None` if there is no library and the user named none: another implementation than the one that
/// was named would hide a mistake.
pub(crate) fn find(path: Option<&Path>) -> Result<Option<Nccl>, LoadError> {
    match load(path) {
        Err(LoadError::NotFound { attempts })
            if path.is_none() && !attempts.iter().any(is_named_by_variable) =>
        {
            Ok(None)
        }
        loaded => loaded.map(Some),
    }
}

#[cfg(feature = "link")]
pub(crate) fn linked() -> Result<Nccl> {
    Ok(Nccl::linked()?)
}

/// Returns an error: this program is not linked with a library.
#[cfg(not(feature = "link"))]
pub(crate) fn linked() -> Result<Nccl> {
    bail!("this program is not linked with NCCL: expected one that was built with `--features link`")
}

/// Loads the file that the user named, or the one that this program is linked with, or searches; always at run time.
pub(crate) fn open(path: Option<&Path>) -> Result<Nccl> {
    let linked = linked().ok();
    let of_program = match linked.as_ref().map(Nccl::backend) {
        Some(Backend::Linked { path }) => path.as_deref(),
        _ => None,
    };
    Ok(load(path.or(of_program))?)
}

pub(crate) fn is_named_by_variable(attempt: &Attempt) -> bool {
    attempt.source == libnccl::internal::PATH_VARIABLE && !attempt.path.as_os_str().is_empty()
}

/// Loads a plugin of NCCL, as NCCL does. It stays loaded.
pub(crate) fn open_plugin(name: &str) -> Result<(), String> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

    // SAFETY: the user has named the plugin for NCCL, which runs its initializers too.
    let plugin = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
    plugin.map(std::mem::forget).map_err(|error| reason(&error))
}

//! Anonymous files that hold shared memory: in no folder, gone with the last process that has them open or mapped,
//! and sealed, so that no rank can shrink the memory under another.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use rustix::io::Result;

/// Creates an empty file.
pub(super) fn create() -> Result<OwnedFd> {
    memfd_create("libnccl-cpu", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// Gives a file its final length in bytes, all zero.
pub(super) fn set_length(file: impl AsFd, length: usize) -> Result<()> {
    ftruncate(&file, length as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Returns `true` if a file can no longer shrink.
pub(super) fn is_sealed(file: impl AsFd) -> Result<bool> {
    Ok(fcntl_get_seals(file)?.contains(SealFlags::SHRINK))
}

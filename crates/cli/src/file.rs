//! Files named by the user or other programs. Opening never blocks on a FIFO, and writes are atomic if possible.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{OFlags, fcntl_setfl};
use tempfile::{Builder, NamedTempFile};

/// Opens a file for reading. Reads of a FIFO wait for its writer.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    let file = open(path, File::options().read(true))?;
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Reads a file. The writer of a FIFO must have opened it already, as for a shell's `<(...)`.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let read = || {
        let (mut file, mut bytes) = (open_to_read(path)?, vec![]);
        file.read_to_end(&mut bytes)?;
        match bytes.is_empty() && file.metadata()?.file_type().is_fifo() {
            true => Err(io::Error::other("a FIFO to which nobody writes")),
            false => Ok(bytes),
        }
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// Creates or truncates a regular file.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let file = open(path, File::options().write(true).create(true).truncate(true));
    match file {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Err(error) if error.raw_os_error() != Some(libc::ENXIO) => Err(error),
        _ => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Opens a file. Fails instead of waiting for the other end of a FIFO.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// Fails if [`write()`] would fail, before there is anything to write.
pub(crate) fn check(path: &Path) -> Result<()> {
    let check = || match unfinished(path)? {
        None if path.is_file() => OpenOptions::new().write(true).open(path).map(drop),
        _ => Ok(()),
    };
    check().with_context(|| format!("cannot create {}", path.display()))
}

/// Writes a file atomically. A device, a pipe, or a file in a directory that does not permit new files is written in place.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let Some((mut file, place)) = unfinished(path)? else { return fs::write(path, bytes) };
        file.write_all(bytes)?;
        match file.persist(place) {
            // The file is a mount point, as in containers.
            Err(error) if error.error.kind() == ErrorKind::ResourceBusy => fs::write(path, bytes),
            persisted => persisted.map(drop).map_err(|error| error.error),
        }
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a temporary file, and returns it with the path to replace; `None` if the file must be written in place.
fn unfinished(path: &Path) -> io::Result<Option<(NamedTempFile<File>, PathBuf)>> {
    // Such as /dev/stdout, which may link to a file that is being written.
    if ["/dev", "/proc"].iter().any(|directory| path.starts_with(directory)) {
        return Ok(None);
    }
    let (place, old) = match fs::canonicalize(path) {
        Ok(place) => (place.clone(), Some(fs::metadata(&place)?)),
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => (path.to_owned(), None),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match &old {
        Some(old) if old.is_dir() => return Err(ErrorKind::IsADirectory.into()),
        Some(old) if !old.is_file() => return Ok(None),
        _ => {}
    }
    let directory =
        place.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let create = |new: &Path| OpenOptions::new().write(true).create_new(true).open(new);
    let made = Builder::new().prefix(".nccl-").suffix(".unfinished").make_in(directory, create);
    let file = match made {
        Err(error) if error.kind() == ErrorKind::PermissionDenied && old.is_some() => return Ok(None),
        made => made?,
    };
    if let Some(old) = old {
        file.as_file().set_permissions(old.permissions())?;
    }
    Ok(Some((file, place)))
}

#[cfg(test)]
#[path = "../tests/unit/file.rs"]
mod tests;

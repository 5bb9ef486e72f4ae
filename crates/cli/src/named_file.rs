//! Files that the user names: written whole or not at all, and otherwise as any program writes a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::{Builder, NamedTempFile};

/// Fails if [`write()`] would, before there is anything to write.
pub(crate) fn check(path: &Path) -> Result<()> {
    let check = || match unfinished(path)? {
        None if path.is_file() => OpenOptions::new().write(true).open(path).map(drop),
        _ => Ok(()),
    };
    check().with_context(|| format!("cannot create {}", path.display()))
}

/// Writes a file, in place of one that has the name. A device, a pipe, or a file in a folder that takes no new ones is written
/// to as it is.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let Some((mut file, place)) = unfinished(path)? else { return fs::write(path, bytes) };
        file.write_all(bytes)?;
        match file.persist(place) {
            // A file that is mounted there, as into containers.
            Err(error) if error.error.kind() == ErrorKind::ResourceBusy => fs::write(path, bytes),
            persisted => persisted.map(drop).map_err(|error| error.error),
        }
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Returns a new file beside the one to write, and the place that it is for; `None` if that has to be written as it is.
fn unfinished(path: &Path) -> io::Result<Option<(NamedTempFile<File>, PathBuf)>> {
    // Such as /dev/stdout, which may lead to a file that is being written.
    if ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder)) {
        return Ok(None);
    }
    let (place, old) = match fs::canonicalize(path) {
        Ok(place) => {
            let old = fs::metadata(&place)?;
            (place, Some(old))
        }
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => (path.to_owned(), None),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match &old {
        Some(old) if old.is_dir() => return Err(ErrorKind::IsADirectory.into()),
        Some(old) if !old.is_file() => return Ok(None),
        _ => {}
    }
    let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let create = |new: &Path| OpenOptions::new().write(true).create_new(true).open(new);
    let made = Builder::new().prefix(".nccl-").suffix(".unfinished").make_in(folder, create);
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
#[path = "../tests/unit/named_file.rs"]
mod tests;

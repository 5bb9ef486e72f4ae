//! Files that others name: none is waited for.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};

/// Opens a file, whose reads wait for the writer if it is a FIFO.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    let file = open(path, File::options().read(true))?;
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Reads a file. A FIFO is one whose writer has opened it already, as a shell's `<(...)` is.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_to_read(path)?;
    let mut bytes = vec![];
    file.read_to_end(&mut bytes)?;
    if bytes.is_empty() && file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "a FIFO to which nobody writes"));
    }
    Ok(bytes)
}

/// Creates a regular file, or empties it.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let file = open(path, File::options().write(true).create(true).truncate(true));
    match file {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Err(error) if error.raw_os_error() != Some(libc::ENXIO) => Err(error),
        _ => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Opens a file, and no FIFO whose other end is to be waited for.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

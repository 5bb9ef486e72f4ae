//! Files that are written because of environment variables.

use std::io::{self, Write};
use std::path::Path;

use tempfile::Builder;

/// Writes a file that only its owner can read. An existing file is replaced atomically. A symbolic link at `path` is replaced,
/// not followed.
///
/// # Errors
/// Returns the system's error if the file cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory =
        path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The name is unpredictable, and the file is never created through a link.
    let mut file = Builder::new().prefix(".nccl-").suffix(".unfinished").tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::write;

    #[test]
    fn file_is_its_owners_and_replaces_a_link_instead_of_following_it() {
        let directory = tempfile::tempdir().unwrap();
        let (other, file) = (directory.path().join("other"), directory.path().join("rank0.json"));
        fs::write(&other, "precious").unwrap();
        symlink(&other, &file).unwrap();
        for text in ["first", "second"] {
            write(&file, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
        assert_eq!(fs::symlink_metadata(&file).unwrap().mode(), 0o100_600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing unfinished is left");
    }

    #[test]
    fn directory_that_is_not_there_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        write(&directory.path().join("none/rank0.json"), b"").unwrap_err();
    }
}

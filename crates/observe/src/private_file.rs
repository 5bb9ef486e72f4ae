//! Files that are written because the environment says so, not the program.

use std::io::{self, Write};
use std::path::Path;

use tempfile::Builder;

/// Writes a file that only its owner can read. A reader sees all of it or, until it is complete, what was there before; what a link
/// of its name leads to is left alone.
///
/// # Errors
/// That of the system.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Made with a name that nobody can know before, and never through a link.
    let mut file = Builder::new().prefix(".nccl-").suffix(".unfinished").tempfile_in(folder)?;
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
        let folder = tempfile::tempdir().unwrap();
        let (other, file) = (folder.path().join("other"), folder.path().join("rank0.json"));
        fs::write(&other, "precious").unwrap();
        symlink(&other, &file).unwrap();
        for text in ["first", "second"] {
            write(&file, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
        assert_eq!(fs::symlink_metadata(&file).unwrap().mode(), 0o100_600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing unfinished is left");
    }

    #[test]
    fn folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("none/rank0.json"), b"").unwrap_err();
    }
}

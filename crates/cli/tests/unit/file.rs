use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::{check, write};

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn new_file_has_the_permissions_of_any_other() {
    let directory = tempfile::tempdir().unwrap();
    let [own, other] = ["own", "other"].map(|name| directory.path().join(name));
    write(&own, b"text").unwrap();
    fs::write(&other, "text").unwrap();
    assert_eq!(fs::metadata(&own).unwrap().mode(), fs::metadata(&other).unwrap().mode());
    assert_eq!(names(directory.path()), ["other", "own"]);
}

#[test]
fn file_that_is_replaced_keeps_its_permissions_and_links_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let [file, link, new, dangling] =
        ["file", "link", "new", "dangling"].map(|name| directory.path().join(name));
    fs::write(&file, "a longer text").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    symlink("file", &link).unwrap();
    symlink(&new, &dangling).unwrap();
    for path in [&link, &dangling] {
        check(path).unwrap();
        write(path, b"text").unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    assert_eq!(fs::metadata(&file).unwrap().mode(), 0o100_640);
    assert_eq!(fs::read_to_string(&new).unwrap(), "text");
    assert!(link.is_symlink() && dangling.is_symlink());
    assert_eq!(names(directory.path()), ["dangling", "file", "link", "new"]);
}

#[test]
fn reader_of_the_old_file_sees_no_part_of_the_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "old").unwrap();
    let old = fs::metadata(&file).unwrap().ino();
    check(&file).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    write(&file, b"new").unwrap();
    assert_ne!(fs::metadata(&file).unwrap().ino(), old);
}

#[test]
fn place_that_cannot_be_written_is_an_error_with_its_name_alone() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none/file");
    let problem = "No such file or directory (os error 2)";
    let text = |result: anyhow::Result<()>| format!("{:#}", result.unwrap_err());
    assert_eq!(text(check(&missing)), format!("cannot create {}: {problem}", missing.display()));
    assert_eq!(text(write(&missing, b"")), format!("cannot write {}: {problem}", missing.display()));
    assert!(text(check(directory.path())).ends_with("is a directory"));
}

#[test]
fn device_is_written_to_as_it_is() {
    let null = Path::new("/dev/null");
    check(null).unwrap();
    write(null, b"text").unwrap();
    let full = format!("{:#}", write(Path::new("/dev/full"), b"text").unwrap_err());
    assert_eq!(full, "cannot write /dev/full: No space left on device (os error 28)");
}

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::{check, write};

#[test]
fn file_that_is_replaced_keeps_its_permissions_and_links_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let [file, link, new, dangling, other] =
        ["file", "link", "new", "dangling", "other"].map(|name| directory.path().join(name));
    fs::write(&file, "a longer text").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let number = fs::metadata(&file).unwrap().ino();
    symlink("file", &link).unwrap();
    symlink(&new, &dangling).unwrap();
    for path in [&link, &dangling] {
        check(path).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "a longer text");
    for path in [&link, &dangling] {
        write(path, b"text").unwrap();
    }
    let replaced = fs::metadata(&file).unwrap();
    assert_eq!((fs::read_to_string(&file).unwrap().as_str(), replaced.mode()), ("text", 0o100_640));
    // A reader of the old file sees no part of the new one.
    assert_ne!(replaced.ino(), number);
    assert_eq!(fs::read_to_string(&new).unwrap(), "text");
    assert!(link.is_symlink() && dangling.is_symlink());
    // A new file has the permissions of any other.
    fs::write(&other, "text").unwrap();
    assert_eq!(fs::metadata(&new).unwrap().mode(), fs::metadata(&other).unwrap().mode());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 5, "no temporary file is left");
    assert!(format!("{:#}", check(directory.path()).unwrap_err()).ends_with("is a directory"));
}

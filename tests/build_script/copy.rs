//! The comparison of bindgen's output with the committed copy.

use std::fs;
use std::path::Path;

use crate::{checkout, generated};

/// A copy of the committed bindings and their sources.
fn bindings_in(root: &Path) -> Vec<(&'static str, String)> {
    for input in ["wrapper.h", "vendor-headers", "src"] {
        std::os::unix::fs::symlink(checkout().join(input), root.join(input)).unwrap();
    }
    let files = fs::read_dir(root.join(generated::DIRECTORY)).unwrap().map(|file| file.unwrap().path());
    let files = files.filter(|file| !file.ends_with(generated::HASH));
    files
        .map(|file| {
            let name: &str = file.file_name().unwrap().to_str().unwrap().to_owned().leak();
            (name, fs::read_to_string(&file).unwrap())
        })
        .collect()
}

#[test]
fn build_finds_a_difference_in_any_generated_file() {
    let root = tempfile::tempdir().unwrap();
    let files = bindings_in(root.path());
    assert_eq!(files.len(), 10, "{files:?}");
    assert_eq!(generated::difference(root.path(), &files), None);
    // A checkout may have other line endings.
    let ends: Vec<_> = files.iter().map(|(file, text)| (*file, text.replace('\n', "\r\n"))).collect();
    assert_eq!(generated::difference(root.path(), &ends), None);
    for planted in 0..files.len() {
        let mut files = files.clone();
        let (file, text) = &mut files[planted];
        let (file, lines) = (*file, text.lines().count());
        text.push_str("more\n");
        let found = generated::difference(root.path(), &files).unwrap();
        assert!(found.starts_with(&format!("{file}, line {}", lines + 1)), "{found}");
        assert!(found.ends_with("the copy has ``, bindgen `more`"), "{found}");
    }
}

#[test]
fn difference_of_a_build_names_the_item() {
    let root = tempfile::tempdir().unwrap();
    let files = bindings_in(root.path());
    #[rustfmt::skip]
    let changes = [
        ("types.rs", "    pub internal: [", "    pub _address: [", "ncclUniqueId"),
        ("types.rs", "pub const NCCL_SPLIT_NOCOLOR: i32 = -1", "pub const NCCL_SPLIT_NOCOLOR: i32 = 1", "NCCL_SPLIT_NOCOLOR"),
        ("linked.rs", "    pub fn ncclGetVersion(", "    pub fn ncclGetVersion2(", "ncclGetVersion"),
        ("dynamic.rs", "    pub unsafe fn ncclGetVersion(", "    pub unsafe fn renamed(", "ncclGetVersion"),
    ];
    for (file, old, new, item) in changes {
        let mut files = files.clone();
        let text = &mut files.iter_mut().find(|(name, _)| *name == file).unwrap().1;
        let at = text.rfind(old).unwrap_or_else(|| panic!("{old} is not in {file}"));
        text.replace_range(at..at + old.len(), new);
        let found = generated::difference(root.path(), &files).unwrap();
        assert!(found.starts_with(&format!("{file}, line ")), "{found}");
        assert!(found.contains(&format!(", {item}: the copy has `{}", old.trim())), "{found}");
        assert!(found.contains(&format!("bindgen `{}", new.trim())), "{found}");
    }
}

#[test]
fn build_compares_nothing_if_the_headers_have_changed() {
    let root = tempfile::tempdir().unwrap();
    let mut files = bindings_in(root.path());
    files[0].1.clear();
    assert!(generated::difference(root.path(), &files).is_some());
    fs::remove_file(root.path().join("wrapper.h")).unwrap();
    fs::write(root.path().join("wrapper.h"), "#include <nccl.h>\n").unwrap();
    assert_eq!(generated::difference(root.path(), &files), None);
}

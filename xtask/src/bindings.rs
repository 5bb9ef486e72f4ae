//! The committed bindings: writes them, or compares them with fresh ones.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use similar::TextDiff;

#[path = "../../build/bindings.rs"]
mod shared;
// Its other half is the build script's.
#[path = "../../build/generated.rs"]
#[allow(dead_code, unexpected_cfgs)]
mod generated;

pub(crate) use shared::{builder, items_with_since, panic_message};

/// The folder of the committed bindings, below the root.
const GENERATED: &str = generated::DIRECTORY;

/// Writes the bindings.
pub(crate) fn write(root: &Path) -> Result<()> {
    for (file, text) in fresh(root)? {
        let path = root.join(GENERATED).join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Fails and prints the differences if the committed bindings differ from those generated from the header.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut stale = Vec::new();
    for (file, text) in fresh(root)? {
        let name = format!("{GENERATED}/{file}");
        // A missing file differs as a whole.
        let committed = fs::read_to_string(root.join(&name)).unwrap_or_default();
        if committed != text {
            print!("{}", difference(&name, &committed, &text));
            stale.push(name);
        }
    }
    if !stale.is_empty() {
        bail!(
            "not generated from the present vendor-headers/nccl.h: {}; run `cargo xtask bindings`",
            stale.join(", ")
        );
    }
    Ok(())
}

fn difference(name: &str, committed: &str, fresh: &str) -> String {
    TextDiff::from_lines(committed, fresh)
        .unified_diff()
        .header(&format!("{name} (committed)"), &format!("{name} (fresh)"))
        .to_string()
}

fn fresh(root: &Path) -> Result<Vec<(&'static str, String)>> {
    find_libclang()?;
    let bindings =
        shared::Bindings::generate(root).map_err(|reason| anyhow!("bindgen: {}", reason.trim()))?;
    let mut files = bindings.0;
    files.push((generated::HASH, generated::hash_of_headers(root)));
    Ok(files)
}

/// Fails if there is no libclang, without which bindgen would panic.
pub(crate) fn find_libclang() -> Result<()> {
    clang_sys::load().map_err(|reason| anyhow!("bindgen needs libclang (on Debian: libclang-dev): {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn check_names_stale_bindings_and_write_replaces_them() {
        let copy = tempfile::tempdir().unwrap();
        for input in ["wrapper.h", "vendor-headers"] {
            std::os::unix::fs::symlink(crate::checkout::root().join(input), copy.path().join(input)).unwrap();
        }
        let [committed, copied] = [crate::checkout::root(), copy.path()].map(|root| root.join(GENERATED));
        fs::create_dir_all(&copied).unwrap();
        for file in fs::read_dir(&committed).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), copied.join(file.file_name())).unwrap();
        }

        let types = copied.join("types.rs");
        fs::write(&types, fs::read_to_string(&types).unwrap().replace("NCCL_MAJOR: u32", "NCCL_MAJOR: i32"))
            .unwrap();
        fs::remove_file(copied.join("since.rs")).unwrap();
        let error = check(copy.path()).unwrap_err().to_string();
        assert!(error.contains(": src/sys/generated/types.rs, src/sys/generated/since.rs; run"), "{error}");
        write(copy.path()).unwrap();
        for file in ["types.rs", "since.rs"] {
            let [committed, written] =
                [&committed, &copied].map(|folder| fs::read_to_string(folder.join(file)).unwrap());
            assert_eq!(difference(file, &committed, &written), "");
        }
    }

    /// A copy of the committed bindings and of what they were generated from.
    fn bindings_in(root: &Path) -> Vec<(&'static str, String)> {
        for input in ["wrapper.h", "vendor-headers", "src"] {
            std::os::unix::fs::symlink(crate::checkout::root().join(input), root.join(input)).unwrap();
        }
        let files = fs::read_dir(root.join(GENERATED)).unwrap().map(|file| file.unwrap().path());
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
        // A checkout may have other line ends.
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
        for (file, old, new, item) in [
            ("types.rs", "    pub internal: [", "    pub _address: [", "ncclUniqueId"),
            (
                "types.rs",
                "pub const NCCL_SPLIT_NOCOLOR: i32 = -1",
                "pub const NCCL_SPLIT_NOCOLOR: i32 = 1",
                "NCCL_SPLIT_NOCOLOR",
            ),
            ("linked.rs", "    pub fn ncclGetVersion(", "    pub fn ncclGetVersion2(", "ncclGetVersion"),
            ("dynamic.rs", "    pub unsafe fn ncclGetVersion(", "    pub unsafe fn gone(", "ncclGetVersion"),
        ] {
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

    #[test]
    fn difference_names_the_file_and_shows_both_sides() {
        let text = difference("types.rs", "a\nold\nz\n", "a\nnew\nz\n");
        assert_eq!(
            text,
            "--- types.rs (committed)\n+++ types.rs (fresh)\n@@ -1,3 +1,3 @@\n a\n-old\n+new\n z\n"
        );
    }
}

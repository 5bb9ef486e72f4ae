//! The committed bindings: writes them, or compares them with fresh ones. The build script of libnccl generates both.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use similar::TextDiff;
use tempfile::TempDir;

use crate::build_script::{BuildScript, failure};

/// The directory of the committed bindings, relative to the root.
const GENERATED: &str = "src/sys/generated";

pub(crate) fn write(root: &Path) -> Result<()> {
    copy(generate(root)?.path(), &root.join(GENERATED))
}

/// Fails and prints the differences if the committed bindings differ from those generated from the header.
pub(crate) fn check(root: &Path) -> Result<()> {
    compare(generate(root)?.path(), &root.join(GENERATED))
}

/// Generates the bindings in a new directory.
fn generate(root: &Path) -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    let output = BuildScript::build(root)?.run(root, "bindings", directory.path())?;
    ensure!(output.status.success(), failure(&output));
    Ok(directory)
}

fn copy(fresh: &Path, committed: &Path) -> Result<()> {
    for file in names(fresh)? {
        let path = committed.join(&file);
        fs::copy(fresh.join(file), &path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn compare(fresh: &Path, committed: &Path) -> Result<()> {
    let mut stale = Vec::new();
    for file in names(fresh)? {
        let name = format!("{GENERATED}/{file}");
        // A missing file differs as a whole.
        let committed = fs::read_to_string(committed.join(&file)).unwrap_or_default();
        let fresh = fs::read_to_string(fresh.join(&file)).with_context(|| format!("cannot read {file}"))?;
        if committed != fresh {
            print!("{}", difference(&name, &committed, &fresh));
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

/// Returns the names of the files in a directory, in order.
fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn difference(name: &str, committed: &str, fresh: &str) -> String {
    TextDiff::from_lines(committed, fresh)
        .unified_diff()
        .header(&format!("{name} (committed)"), &format!("{name} (fresh)"))
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_names_stale_files_and_copy_replaces_them() {
        let [fresh, committed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [fresh, committed] = [fresh.path(), committed.path()];
        copy(&crate::root().join(GENERATED), fresh).unwrap();
        copy(fresh, committed).unwrap();
        compare(fresh, committed).unwrap();

        let types = committed.join("types.rs");
        let text = fs::read_to_string(&types).unwrap();
        fs::write(&types, text.replace("NCCL_MAJOR: u32", "NCCL_MAJOR: i32")).unwrap();
        fs::remove_file(committed.join("since.rs")).unwrap();
        let error = compare(fresh, committed).unwrap_err().to_string();
        assert!(error.contains(": src/sys/generated/since.rs, src/sys/generated/types.rs; run"), "{error}");
        copy(fresh, committed).unwrap();
        compare(fresh, committed).unwrap();
        assert_eq!(fs::read_to_string(&types).unwrap(), text);
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

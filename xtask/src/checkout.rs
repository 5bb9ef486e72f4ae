//! The checkout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Returns the root of the checkout that this program was built from.
pub(crate) fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Writes a generated page, or with `check` fails if the committed one differs; `task` is what writes it.
pub(crate) fn write_or_check(page: &str, text: &str, check: bool, task: &str) -> Result<()> {
    let path = root().join(page);
    if !check {
        return fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()));
    }
    let committed = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(committed == text, "{page} is out of date; `cargo xtask {task}` writes it");
    Ok(())
}

/// Returns the Rust files below a folder, in order.
pub(crate) fn rust_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

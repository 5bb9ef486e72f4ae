//! The checkout: its root and its files.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Returns the root of the checkout that this program was built from.
pub(crate) fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Returns the files that are tracked or could be, in order, relative to the root.
pub(crate) fn files(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["-c", "core.quotePath=false", "ls-files", "--cached", "--others", "--exclude-standard"]);
    let output = git.current_dir(root).output().context("cannot run git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout)?;
    // A deleted file is listed until its deletion is committed.
    let mut files: Vec<String> =
        listed.lines().filter(|file| root.join(file).is_file()).map(String::from).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

//! Files and folders before those that the dynamic linker is told of by the environment.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libnccl::internal::environment::variable;

/// Fails if a file there cannot be in `LD_PRELOAD`, which separates by blanks too.
pub(crate) fn check(path: &Path) -> Result<()> {
    let is_one = !path.to_string_lossy().contains([' ', ':']);
    ensure!(is_one, "{} cannot be preloaded: its path has a blank or a colon", path.display());
    Ok(())
}

/// Returns the list of paths in a variable with others before, which [`check`] has passed.
pub(crate) fn before(name: &str, first: impl IntoIterator<Item = PathBuf>) -> Result<OsString> {
    let rest = variable(name).filter(|rest| !rest.is_empty());
    let rest = rest.iter().flat_map(env::split_paths);
    env::join_paths(first.into_iter().chain(rest)).with_context(|| format!("cannot set {name}"))
}

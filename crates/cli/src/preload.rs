//! Files and directories in the dynamic linker's environment variables.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libnccl::internal::environment::variable;

/// Fails if a file at this path cannot be in `LD_PRELOAD`, whose separators include blanks.
pub(crate) fn check(path: &Path) -> Result<()> {
    let is_one = !path.to_string_lossy().contains([' ', ':']);
    ensure!(is_one, "{} cannot be preloaded: its path has a blank or a colon", path.display());
    Ok(())
}

pub(crate) fn search_first(directories: &[PathBuf]) -> Result<OsString> {
    let rest = variable("LD_LIBRARY_PATH").filter(|rest| !rest.is_empty());
    let all = directories.iter().cloned().chain(rest.iter().flat_map(env::split_paths));
    env::join_paths(all).context("cannot set LD_LIBRARY_PATH")
}

/// Returns the variables that preload these libraries, which [`check`] has accepted. The libraries come before the user's
/// libraries with NCCL's or CUDA's functions, and after all others: allocators, for example, must be first.
pub(crate) fn preload(own: impl IntoIterator<Item = PathBuf>) -> Result<[(&'static str, OsString); 2]> {
    let given = variable("LD_PRELOAD").unwrap_or_default();
    let is_separator = |byte: &u8| matches!(byte, b' ' | b':');
    let given = given.as_bytes().split(is_separator).filter(|path| !path.is_empty());
    let given = given.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    let (replaced, mut all): (Vec<PathBuf>, Vec<PathBuf>) = given.partition(|path| {
        let name = path.file_name().unwrap_or_default().as_bytes();
        ["libnccl.so", "libcuda.so", "libcudart.so", "libnvidia-ml.so"]
            .iter()
            .any(|own| name.starts_with(own.as_bytes()))
    });
    all.extend(own.into_iter().chain(replaced));
    let all = env::join_paths(all).context("cannot set LD_PRELOAD")?;
    // AddressSanitizer aborts if its library is not first, although these have none of its functions. The last value counts.
    let mut options = OsString::from("verify_asan_link_order=0");
    if let Some(given) = variable("ASAN_OPTIONS").filter(|given| !given.is_empty()) {
        options.push(":");
        options.push(given);
    }
    Ok([("LD_PRELOAD", all), ("ASAN_OPTIONS", options)])
}

/// Returns the possible paths of an installed file: in this program's directory, or in `../lib`.
pub(crate) fn installed(name: &str) -> Result<[PathBuf; 2]> {
    let program = env::current_exe().context("the path of this program is not known")?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    Ok([directory.join(name), directory.join("../lib").join(name)])
}

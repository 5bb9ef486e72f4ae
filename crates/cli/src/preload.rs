//! Files and directories that the dynamic linker gets from the environment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libnccl::internal::environment::variable;

/// Fails if a file there cannot be in `LD_PRELOAD`, which separates by blanks too.
pub(crate) fn check(path: &Path) -> Result<()> {
    let is_one = !path.to_string_lossy().contains([' ', ':']);
    ensure!(is_one, "{} cannot be preloaded: its path has a blank or a colon", path.display());
    Ok(())
}

/// Returns `LD_LIBRARY_PATH` with directories before the others.
pub(crate) fn search_first(directories: &[PathBuf]) -> Result<OsString> {
    let rest = variable("LD_LIBRARY_PATH").filter(|rest| !rest.is_empty());
    let all = directories.iter().cloned().chain(rest.iter().flat_map(env::split_paths));
    env::join_paths(all).context("cannot set LD_LIBRARY_PATH")
}

/// Returns `LD_PRELOAD` for a program with these libraries, which [`check`] has passed: before those of the user that have the same
/// functions, NCCL's or CUDA's, and after all others, such as sanitizers and allocators, which have to be first.
pub(crate) fn preload(program: &OsStr, own: impl IntoIterator<Item = PathBuf>) -> Result<OsString> {
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
    if let Some(sanitizer) = sanitizer(program)
        && !all.iter().any(|path| path.file_name() == sanitizer.file_name())
    {
        all.insert(0, sanitizer);
    }
    env::join_paths(all).context("cannot set LD_PRELOAD")
}

/// Returns the runtime library of GCC's `AddressSanitizer` that a program is linked with: it refuses to run behind others.
fn sanitizer(program: &OsStr) -> Option<PathBuf> {
    const START: &[u8] = b"\0libasan.so.";
    let has_path = program.as_bytes().contains(&b'/');
    let directories = variable("PATH").filter(|_| !has_path).unwrap_or_default();
    let candidates = env::split_paths(&directories).map(|directory| directory.join(program));
    let file = [PathBuf::from(program)]
        .into_iter()
        .filter(|_| has_path)
        .chain(candidates)
        .find(|file| file.is_file())?;
    // The names come before the code.
    let mut program = vec![];
    File::open(file)
        .ok()?
        .take(16 << 20)
        .read_to_end(&mut program)
        .ok()
        .filter(|_| program.starts_with(b"\x7fELF"))?;
    let found = program.windows(START.len()).position(|bytes| bytes == START)?;
    let name = program[found + 1..].split(|byte| *byte == 0).next()?;
    let is_version = name.len() < 20 && name[START.len() - 1..].iter().all(u8::is_ascii_digit);
    is_version.then(|| OsStr::from_bytes(name).into())
}

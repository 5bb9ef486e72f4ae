//! The CPU implementation as a shared object, which any program loads in place of NCCL, and what C programs need to be
//! compiled and linked with it.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// NCCL's header and what it includes of the CUDA toolkit, in `vendor-headers`.
const HEADERS: [&str; 5] = [
    "nccl.h",
    "stubs/cuda/cuda_bf16.h",
    "stubs/cuda/cuda_fp16.h",
    "stubs/cuda/cuda_fp8.h",
    "stubs/cuda/cuda_runtime.h",
];

/// The argument of cargo that optimises the shared object.
pub(crate) const OPTIMISED: &str = "--profile=shared-object";

/// The way in which the shared object is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Optimised,
    Debug,
}

/// Builds the shared object and copies it to `directory` as `libnccl.so.2`, with the link `libnccl.so` for linkers and
/// the headers. Returns the path of the copy.
pub(crate) fn install(directory: &Path, profile: Profile) -> Result<PathBuf> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg("build").args((profile == Profile::Optimised).then_some(OPTIMISED));
    let built = build(&mut cargo)?;
    install_headers(directory)?;
    let library = directory.join("libnccl.so.2");
    replace(&library, |copy| fs::copy(&built, copy).map(drop))?;
    replace(&directory.join("libnccl.so"), |link| symlink("libnccl.so.2", link))?;
    Ok(library)
}

/// Copies the headers to `directory`, which is created if needed.
pub(crate) fn install_headers(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for header in HEADERS.map(|header| crate::checkout::root().join("vendor-headers").join(header)) {
        let name = header.file_name().with_context(|| format!("{} has no name", header.display()))?;
        replace(&directory.join(name), |copy| fs::copy(&header, copy).map(drop))?;
    }
    Ok(())
}

/// Makes a file under another name and then renames it: a program that has mapped the old file keeps it.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    make(Path::new(&new))
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Builds the shared object with this command of cargo's, and returns its path.
pub(crate) fn build(cargo: &mut Command) -> Result<PathBuf> {
    let output = cargo
        .args(["--quiet", "--package", "libnccl-cpu-so", "--message-format=json-render-diagnostics"])
        .current_dir(crate::checkout::root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cannot build libnccl-cpu-so");
    }
    let messages = String::from_utf8(output.stdout).context("cargo's output")?;
    messages.lines().find_map(shared_object).context("cargo did not report the shared object nccl_cpu")
}

/// Returns the path of the shared object if this message of cargo's reports it.
fn shared_object(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["target"]["name"] != "nccl_cpu" {
        return None;
    }
    let mut files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
    files.find(|file| file.ends_with(".so")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_object_is_found_in_cargos_messages() {
        let artifact = r#"{"reason":"compiler-artifact","target":{"name":"nccl_cpu","kind":["cdylib"]},
            "filenames":["/t/debug/libnccl_cpu.a","/t/debug/libnccl_cpu.so"]}"#;
        assert_eq!(shared_object(artifact), Some("/t/debug/libnccl_cpu.so".into()));
        assert_eq!(shared_object(&artifact.replace("nccl_cpu\"", "libc\"")), None);
        assert_eq!(shared_object(r#"{"reason":"build-finished","success":true}"#), None);
    }
}

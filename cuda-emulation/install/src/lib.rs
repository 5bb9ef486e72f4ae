//! Building shared objects and copying them to where programs load them.

#![allow(missing_docs)] // the names say it

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The profile with which a shared object is compiled. The profiles are in the workspace's `Cargo.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Optimized,
    /// Not optimized. The directory differs from the tests' directory: the tests depend on the same packages with other features,
    /// so Cargo would compile both again each time.
    Debug,
}

impl Profile {
    pub fn argument(self) -> &'static str {
        match self {
            Self::Optimized => "--profile=shared-object",
            Self::Debug => "--profile=shared-object-debug",
        }
    }

    /// Returns the command of Cargo that builds with this profile.
    pub fn cargo(self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["rustc", self.argument()]);
        cargo
    }
}

#[derive(Debug, Clone, Copy)]
pub struct SharedObject {
    pub manifest: &'static str,
    pub package: &'static str,
    pub library: &'static str,
    /// The only feature, or empty for the default features.
    pub feature: &'static str,
    /// The file name. It is the soname if programs load the library by its soname.
    pub soname: &'static str,
    /// The name of the link that linkers use.
    pub link: Option<&'static str>,
}

const fn cuda(
    package: &'static str,
    library: &'static str,
    feature: &'static str,
    soname: &'static str,
    link: Option<&'static str>,
) -> SharedObject {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    SharedObject { manifest, package, library, feature, soname, link }
}

pub const DRIVER: SharedObject =
    cuda("libnccl-cuda-driver", "cuda_cpu", "", "libcuda.so.1", Some("libcuda.so"));

/// The emulated runtime libraries, and the libraries that programs load with them. Their symbols have versions.
pub const RUNTIMES: [SharedObject; 6] = [
    cuda("libnccl-cuda-math", "cuda_math_cpu", "cublas-13", "libcublas.so.13", None),
    cuda("libnccl-cuda-math", "cuda_math_cpu", "", "libcublas.so.12", Some("libcublas.so")),
    cuda("libnccl-cuda-math", "cuda_math_cpu", "curand", "libcurand.so.10", Some("libcurand.so")),
    cuda("libnccl-nvml", "nvml_cpu", "", "libnvidia-ml.so.1", None),
    cuda("libnccl-cuda-runtime", "cudart_cpu", "cuda-13", "libcudart.so.13", None),
    cuda("libnccl-cuda-runtime", "cudart_cpu", "", "libcudart.so.12", Some("libcudart.so")),
];

/// Builds all libraries of the CUDA emulation and copies them to `directory`, which is created if needed.
pub fn install(directory: &Path, profile: Profile) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for library in [DRIVER].into_iter().chain(RUNTIMES) {
        install_one(&mut profile.cargo(), library, directory)?;
    }
    Ok(())
}

/// Builds a library with this `cargo rustc` command and copies it to `directory`. Returns the path of the copy.
pub fn install_one(cargo: &mut Command, library: SharedObject, directory: &Path) -> Result<PathBuf> {
    let built = build(cargo, library, true)?;
    let path = directory.join(library.soname);
    replace(&path, |copy| fs::copy(&built, copy).map(drop))?;
    if let Some(link) = library.link {
        replace(&directory.join(link), |link| symlink(library.soname, link))?;
    }
    Ok(path)
}

/// Creates a file under another name and then renames it: a program that has mapped the old file keeps the old content.
pub fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    make(Path::new(&new))
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Builds a library with this `cargo rustc` command, as a shared object or as an archive, and returns the path of the file.
pub fn build(cargo: &mut Command, library: SharedObject, is_shared: bool) -> Result<PathBuf> {
    let SharedObject { manifest, package, library, feature, soname, .. } = library;
    eprintln!("building {soname}");
    // Only this crate type: with an rlib too, the shared object would not be optimized across crates.
    let (crate_type, extension) = if is_shared { ("cdylib", ".so") } else { ("staticlib", ".a") };
    cargo.args(["--manifest-path", manifest, "--lib"]).arg(format!("--crate-type={crate_type}"));
    if !feature.is_empty() {
        cargo.args(["--no-default-features", "--features", feature]);
    }
    build_target(cargo, package, library, extension)
}

/// Builds a library or program of a package with this Cargo command. Returns the path of its file with this extension, which may
/// be empty.
pub fn build_target(cargo: &mut Command, package: &str, target: &str, extension: &str) -> Result<PathBuf> {
    let output = cargo
        .args(["--package", package, "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cannot build {package}");
    }
    let messages = String::from_utf8(output.stdout).context("cargo's output")?;
    let mut found = messages.lines().filter_map(|message| file_of(message, target, extension));
    found.next().with_context(|| format!("cargo did not report a file {extension} of {target}"))
}

/// Returns the path of the target's file with this extension if this Cargo message reports it.
fn file_of(message: &str, target: &str, extension: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["target"]["name"] != target {
        return None;
    }
    let mut files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
    files.find(|file| file.ends_with(extension)).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_a_target_is_found_in_cargos_messages() {
        let artifact = r#"{"reason":"compiler-artifact","target":{"name":"nccl_cpu","kind":["cdylib"]},
            "filenames":["/t/debug/libnccl_cpu.a","/t/debug/libnccl_cpu.so"]}"#;
        assert_eq!(file_of(artifact, "nccl_cpu", ".so"), Some("/t/debug/libnccl_cpu.so".into()));
        assert_eq!(file_of(artifact, "nccl_cpu", ".a"), Some("/t/debug/libnccl_cpu.a".into()));
        assert_eq!(file_of(artifact, "libc", ".so"), None);
        assert_eq!(file_of(r#"{"reason":"build-finished","success":true}"#, "nccl_cpu", ".so"), None);
        let program =
            r#"{"reason":"compiler-artifact","target":{"name":"nccl"},"filenames":["/t/release/nccl"]}"#;
        assert_eq!(file_of(program, "nccl", ""), Some("/t/release/nccl".into()));
    }
}

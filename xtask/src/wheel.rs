//! Wheels of the Python package index, kept in a cache outside the checkout.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};
use zip::ZipArchive;

/// The wheels that may be downloaded, with their hashes; one pip requirement per line.
const REQUIREMENTS: &str = include_str!("../wheels.txt");

/// A wheel, and the files to keep from it.
#[derive(Debug)]
pub(crate) struct Wheel<'a> {
    pub(crate) package: &'a str,
    pub(crate) version: &'a str,
    /// The name of the wheel's directory in the cache.
    pub(crate) directory: &'a str,
    /// The size of the download, as text.
    pub(crate) size: &'a str,
    /// Returns the path in the directory for a file of the wheel, or `None` for a file that is not kept.
    pub(crate) target: fn(&Path) -> Option<&Path>,
    /// Files that the directory must have.
    pub(crate) required: &'a [&'a str],
}

impl Wheel<'_> {
    /// Returns the wheel's directory in the cache, after downloading the wheel if needed.
    pub(crate) fn obtain(&self) -> Result<PathBuf> {
        let Self { package, version, .. } = self;
        let cache = cache()?;
        let directory = cache.join(self.directory);
        if self.is_complete(&directory) {
            return Ok(directory);
        }
        fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
        // Unpacked elsewhere and then renamed, so that the directory never contains a partial file.
        let scratch = tempfile::Builder::new().prefix(".unfinished-").tempdir_in(&cache)?;
        let unpacked = scratch.path().join("unpacked");
        eprintln!("downloading {package} {version} from PyPI, {}", self.size);
        let file = download(package, version, &scratch.path().join("wheel"))?;
        self.unpack(&file, &unpacked).with_context(|| format!("cannot unpack {package} {version}"))?;
        fs::create_dir_all(directory.parent().unwrap_or(&cache))?;
        if let Err(error) = fs::rename(&unpacked, &directory) {
            // Another process may have been faster.
            ensure!(self.is_complete(&directory), "cannot replace {}: {error}", directory.display());
        }
        Ok(directory)
    }

    fn is_complete(&self, directory: &Path) -> bool {
        self.required.iter().all(|file| directory.join(file).is_file())
    }

    /// Extracts the files to keep from the wheel, which is a zip archive.
    fn unpack(&self, file: &Path, into: &Path) -> Result<()> {
        let mut archive = ZipArchive::new(File::open(file)?)?;
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index)?;
            // `enclosed_name` is `None` for a path outside of the directory.
            let Some(path) = entry.enclosed_name() else { continue };
            let Some(path) = (self.target)(&path).filter(|_| !entry.is_dir()) else { continue };
            let target = into.join(path);
            fs::create_dir_all(target.parent().unwrap_or(into))?;
            io::copy(&mut entry, &mut File::create(&target)?)?;
            if entry.unix_mode().is_some_and(|mode| mode & 0o100 != 0) {
                fs::set_permissions(&target, PermissionsExt::from_mode(0o755))?;
            }
        }
        for file in self.required {
            if !into.join(file).is_file() {
                bail!("it has no {file}");
            }
        }
        Ok(())
    }
}

/// The directory of downloaded packages, for `cargo xtask` and `.ci/run`. Default: `~/.cache/libnccl`.
const CACHE: &str = "LIBNCCL_CACHE";

/// Returns the cache directory: `$LIBNCCL_CACHE`, or else `$XDG_CACHE_HOME/libnccl`, or else `~/.cache/libnccl`.
pub(crate) fn cache() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set(CACHE)
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("libnccl")))
        .or_else(|| Some(set("HOME")?.join(".cache/libnccl")))
        .context("no directory for downloaded packages: set LIBNCCL_CACHE")?;
    Ok(std::path::absolute(cache)?)
}

/// Returns the wheel's line in the list of requirements.
pub(crate) fn requirement(package: &str, version: &str) -> Result<&'static str> {
    let start = format!("{package}=={version} ");
    let mut lines = REQUIREMENTS.lines();
    lines.find(|line| line.starts_with(&start)).with_context(|| {
        format!("no hash of {package} {version} in xtask/wheels.txt, without which nothing is downloaded")
    })
}

fn download(package: &str, version: &str, into: &Path) -> Result<PathBuf> {
    let output = pip(requirement(package, version)?, into)?
        .output()
        .map_err(|error| anyhow!("downloading packages needs pip, and python3 does not run: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("pip cannot download {package} {version}: {}", stderr.trim());
    }
    let mut files = fs::read_dir(into)?.collect::<Result<Vec<_>, _>>()?.into_iter().map(|file| file.path());
    files.find(|file| file.extension().is_some_and(|e| e == "whl")).context("pip downloaded no wheel")
}

/// Returns the command that downloads a requirement into a directory, and rejects a file with another hash.
fn pip(requirement: &str, into: &Path) -> Result<Command> {
    fs::create_dir_all(into)?;
    let requirements = into.join("requirements.txt");
    fs::write(&requirements, requirement)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--quiet"])
        // No second copy in pip's cache, no notice about new versions of pip.
        .args(["--no-cache-dir", "--disable-pip-version-check", "--dest"])
        .arg(into)
        .arg("--requirement")
        .arg(requirements);
    Ok(pip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheel_has_hashes_and_an_unknown_one_is_refused() {
        for line in REQUIREMENTS.lines().filter(|line| !line.starts_with('#')) {
            let hashes: Vec<_> = line.split(" --hash=sha256:").skip(1).collect();
            let is_hash = |hash: &&str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(!hashes.is_empty() && hashes.iter().all(is_hash), "{line}");
        }
        let error = requirement("nvidia-nccl-cu12", "9.9.9").unwrap_err().to_string();
        assert!(error.starts_with("no hash of nvidia-nccl-cu12 9.9.9 in xtask/wheels.txt"), "{error}");
    }

    #[test]
    fn wheel_with_another_hash_is_refused_by_pip() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("nvidia_nccl_cu12-2.32.3-py3-none-any.whl"), "another").unwrap();
        let into = directory.path().join("wheel");
        let mut pip = pip(requirement("nvidia-nccl-cu12", "2.32.3").unwrap(), &into).unwrap();
        let output = pip.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", directory.path()).output();
        let text =
            output.map_or_else(|error| error.to_string(), |o| String::from_utf8_lossy(&o.stderr).into());
        let is_absent = text.contains("No module named pip") || text.contains("No such file");
        assert!(is_absent || text.contains("DO NOT MATCH THE HASHES"), "{text}");
        assert!(!into.join("nvidia_nccl_cu12-2.32.3-py3-none-any.whl").exists());
    }
}

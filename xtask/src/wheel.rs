//! Wheels of the Python package index, kept in a cache outside the checkout.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use zip::ZipArchive;

/// The wheels that may be downloaded, with their hashes; a requirement of pip per line.
const REQUIREMENTS: &str = include_str!("../wheels.txt");

/// A wheel, and the files of it that are kept.
#[derive(Debug)]
pub(crate) struct Wheel<'a> {
    pub(crate) package: &'a str,
    pub(crate) release: &'a str,
    /// The name of the wheel's folder in the cache.
    pub(crate) folder: &'a str,
    /// The size of the download, as text.
    pub(crate) size: &'a str,
    /// Returns the path in the folder for a file of the wheel, `None` for a file that is not kept.
    pub(crate) target: fn(&Path) -> Option<&Path>,
    /// Files that the folder must have.
    pub(crate) required: &'a [&'a str],
}

impl Wheel<'_> {
    /// Returns the wheel's folder in the cache, after downloading the wheel if needed.
    pub(crate) fn obtain(&self) -> Result<PathBuf> {
        let Self { package, release, .. } = self;
        let cache = cache()?;
        let folder = cache.join(self.folder);
        if self.is_complete(&folder) {
            return Ok(folder);
        }
        fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
        // Unpacked elsewhere and then renamed: the folder never holds a part of a file.
        let scratch = tempfile::Builder::new().prefix(".unfinished-").tempdir_in(&cache)?;
        let unpacked = scratch.path().join("unpacked");
        eprintln!("downloading {package} {release} from PyPI, {}", self.size);
        let file = download(package, release, &scratch.path().join("wheel"))?;
        self.unpack(&file, &unpacked).with_context(|| format!("cannot unpack {package} {release}"))?;
        self.install(&unpacked, &folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    }

    fn is_complete(&self, folder: &Path) -> bool {
        self.required.iter().all(|file| folder.join(file).is_file())
    }

    /// Gives the unpacked files the folder's place in the cache.
    fn install(&self, unpacked: &Path, folder: &Path) -> io::Result<()> {
        if let Some(parent) = folder.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::rename(unpacked, folder) {
            // Another process was faster, or the folder had some of the files.
            Err(_) if folder.is_dir() => self.complete(unpacked, folder),
            result => result,
        }
    }

    /// Moves the required files that the folder lacks into it.
    fn complete(&self, unpacked: &Path, folder: &Path) -> io::Result<()> {
        for file in self.required.iter().filter(|file| !folder.join(file).is_file()) {
            let target = folder.join(file);
            fs::create_dir_all(target.parent().unwrap_or(folder))?;
            fs::rename(unpacked.join(file), target)?;
        }
        Ok(())
    }

    /// Extracts the files that are kept from the wheel, which is a zip archive.
    fn unpack(&self, file: &Path, into: &Path) -> Result<()> {
        let mut archive = ZipArchive::new(File::open(file)?)?;
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index)?;
            // `enclosed_name` is `None` for a path that leads out of the folder.
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

/// Returns the cache: that, else `$XDG_CACHE_HOME/libnccl`, else `~/.cache/libnccl`.
pub(crate) fn cache() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set(CACHE)
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("libnccl")))
        .or_else(|| Some(set("HOME")?.join(".cache/libnccl")))
        .context("no folder for downloaded packages: set LIBNCCL_CACHE")?;
    Ok(std::path::absolute(cache)?)
}

/// Returns the wheel's line in the list of requirements.
pub(crate) fn requirement(package: &str, release: &str) -> Result<&'static str> {
    let start = format!("{package}=={release} ");
    let mut lines = REQUIREMENTS.lines();
    lines.find(|line| line.starts_with(&start)).with_context(|| {
        format!("no hash of {package} {release} in xtask/wheels.txt, without which nothing is downloaded")
    })
}

fn download(package: &str, release: &str, into: &Path) -> Result<PathBuf> {
    let mut pip = pip(requirement(package, release)?, into)?;
    let output = pip
        .output()
        .map_err(|error| anyhow!("downloading packages needs pip, and python3 does not run: {error}"))?;
    if !output.status.success() {
        bail!(pip_failure(package, release, &String::from_utf8_lossy(&output.stderr)));
    }
    let mut files = fs::read_dir(into)?.collect::<Result<Vec<_>, _>>()?.into_iter().map(|file| file.path());
    files.find(|file| file.extension().is_some_and(|e| e == "whl")).context("pip downloaded no wheel")
}

/// Returns the command that downloads a requirement into a folder, and refuses a file of another hash.
fn pip(requirement: &str, into: &Path) -> Result<Command> {
    fs::create_dir_all(into)?;
    let requirements = into.join("requirements.txt");
    fs::write(&requirements, requirement)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--quiet"])
        // No second copy in pip's cache, no notice about new releases of pip.
        .args(["--no-cache-dir", "--disable-pip-version-check", "--dest"])
        .arg(into)
        .arg("--requirement")
        .arg(requirements);
    Ok(pip)
}

/// Returns pip's error message as one sentence.
fn pip_failure(package: &str, release: &str, stderr: &str) -> String {
    if stderr.contains("No module named pip") {
        return "downloading packages needs pip, and python3 has none (on Debian: python3-pip)".into();
    }
    let versions = stderr.split_once("(from versions: ").and_then(|(_, rest)| rest.split_once(')'));
    match versions {
        Some(("none", _)) => {
            format!("pip finds no {package}: PyPI cannot be reached, or has none for this machine")
        }
        Some((versions, _)) => format!("there is no {package} {release} for this machine, only {versions}"),
        None => {
            let error = stderr.lines().rev().find(|line| line.starts_with("ERROR: "));
            let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
            format!(
                "pip cannot download {package} {release}: {}",
                error.or(last).unwrap_or("it gives no reason")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_made_in_an_empty_cache_and_completed_without_its_library() {
        let directory = tempfile::tempdir().unwrap();
        let (unpacked, folder) = (directory.path().join("unpacked"), directory.path().join("2.3.4"));
        for (root, text) in [(&unpacked, "new"), (&folder, "old")] {
            fs::create_dir_all(root.join("include")).unwrap();
            fs::write(root.join("include/nccl.h"), text).unwrap();
        }
        fs::create_dir_all(unpacked.join("lib")).unwrap();
        fs::write(unpacked.join("lib/libnccl.so.2"), "new").unwrap();
        let wheel = Wheel {
            package: "p",
            release: "2.3.4",
            folder: "2.3.4",
            size: "",
            target: |path| Some(path),
            required: &["include/nccl.h", "lib/libnccl.so.2"],
        };
        assert!(wheel.is_complete(&unpacked) && !wheel.is_complete(&folder));
        wheel.install(&unpacked, &folder).unwrap();
        assert!(wheel.is_complete(&folder));
        assert_eq!(fs::read_to_string(folder.join("include/nccl.h")).unwrap(), "old");

        let in_empty_cache = directory.path().join("cache/tools/p-2.3.4");
        wheel.install(&folder, &in_empty_cache).unwrap();
        assert!(wheel.is_complete(&in_empty_cache));
    }

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

    #[test]
    fn pip_failure_is_reported_in_one_sentence() {
        let failure = |stderr| pip_failure("nvidia-nccl-cu12", "9.9.9", stderr);
        let unknown = "ERROR: Could not find a version that satisfies the requirement nvidia-nccl-cu12==9.9.9 \
                       (from versions: 2.16.2, 2.32.3)\nERROR: No matching distribution found\n";
        assert_eq!(
            failure(unknown),
            "there is no nvidia-nccl-cu12 9.9.9 for this machine, only 2.16.2, 2.32.3"
        );
        let unreachable = "WARNING: Retrying\nERROR: Could not find a version (from versions: none)\n";
        assert!(failure(unreachable).contains("PyPI cannot be reached"));
        assert!(failure("/usr/bin/python3: No module named pip\n").contains("python3 has none"));
        assert!(failure("ERROR: disk full\nnotice\n").ends_with("9.9.9: ERROR: disk full"));
    }
}

//! Packages of the Python package index, kept outside the tree: NVIDIA's own of NCCL, and what it is compared with.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use zip::ZipArchive;

/// A wheel, and what of it is wanted.
#[derive(Debug)]
pub(crate) struct Wheel<'a> {
    pub(crate) package: &'a str,
    pub(crate) release: &'a str,
    /// The name of its folder among the packages that are kept.
    pub(crate) folder: &'a str,
    /// How much is to be downloaded, in words.
    pub(crate) size: &'a str,
    /// Where in the folder a file of the wheel belongs; none if it is not wanted.
    pub(crate) place: fn(&Path) -> Option<&Path>,
    /// Files that have to be in the folder.
    pub(crate) needed: &'a [&'a str],
}

/// The folder that holds `lib/` and `include/` of a release. The first call for a release downloads it.
pub(crate) fn obtain(release: &str) -> Result<PathBuf> {
    obtain_wheel(&Wheel {
        package: &package(release)?,
        release,
        folder: release,
        size: "some hundred megabytes",
        place: |path| {
            let path = path.strip_prefix("nvidia/nccl").ok()?;
            (path.starts_with("include") || path == Path::new("lib/libnccl.so.2")).then_some(path)
        },
        needed: &["include/nccl.h", "lib/libnccl.so.2"],
    })
}

/// The folder that holds what is wanted of a wheel. The first call downloads it.
pub(crate) fn obtain_wheel(wheel: &Wheel<'_>) -> Result<PathBuf> {
    let Wheel { package, release, .. } = wheel;
    let cache = cache()?;
    let folder = cache.join(wheel.folder);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    // Unpacked aside and renamed at the end: a package is there as a whole or not at all.
    let scratch = tempfile::Builder::new().prefix(".unfinished-").tempdir_in(&cache)?;
    let unpacked = scratch.path().join("unpacked");
    eprintln!("downloading {package} {release} from PyPI, {}", wheel.size);
    let file = download(package, release, &scratch.path().join("wheel"))?;
    unpack(wheel, &file, &unpacked).with_context(|| format!("cannot unpack {package} {release}"))?;
    match fs::rename(&unpacked, &folder) {
        // Somebody else was faster.
        Err(_) if folder.is_dir() => {}
        result => result.with_context(|| format!("cannot create {}", folder.display()))?,
    }
    Ok(folder)
}

/// The package that has a release: NVIDIA names them after the CUDA that they were built with, and changed
/// over with 2.16.
fn package(release: &str) -> Result<String> {
    let parts: Vec<&str> = release.split('.').collect();
    let numbers: Vec<u32> = parts.iter().map_while(|part| part.parse().ok()).collect();
    // The release becomes the name of a folder and an argument of pip, so it had better be one.
    let plain = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()));
    match numbers[..] {
        [major, minor, _, ..] if plain => {
            Ok(format!("nvidia-nccl-cu{}", if (major, minor) < (2, 16) { 11 } else { 12 }))
        }
        _ => bail!("{release:?} is not a release of NCCL; they look like 2.32.3"),
    }
}

/// `$LIBNCCL_CACHE`, else `$XDG_CACHE_HOME/libnccl`, else `~/.cache/libnccl`.
fn cache() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("LIBNCCL_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("libnccl")))
        .or_else(|| Some(set("HOME")?.join(".cache/libnccl")))
        .context("no place to keep packages: set LIBNCCL_CACHE to a folder")?;
    Ok(std::path::absolute(cache)?)
}

fn download(package: &str, release: &str, into: &Path) -> Result<PathBuf> {
    let output = Command::new("python3")
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"])
        // pip would keep a second copy, and advertise itself.
        .args(["--no-cache-dir", "--disable-pip-version-check", "--dest"])
        .arg(into)
        .arg(format!("{package}=={release}"))
        .output()
        .map_err(|error| anyhow!("packages are downloaded with pip, and python3 does not run: {error}"))?;
    if !output.status.success() {
        bail!(pip_failure(package, release, &String::from_utf8_lossy(&output.stderr)));
    }
    let mut files = fs::read_dir(into)?.collect::<Result<Vec<_>, _>>()?.into_iter().map(|file| file.path());
    files.find(|file| file.extension().is_some_and(|e| e == "whl")).context("pip downloaded no wheel")
}

/// pip's failure in one sentence.
fn pip_failure(package: &str, release: &str, stderr: &str) -> String {
    if stderr.contains("No module named pip") {
        return "packages are downloaded with pip, and python3 has none (on Debian: python3-pip)".into();
    }
    let versions = stderr.split_once("(from versions: ").and_then(|(_, rest)| rest.split_once(')'));
    match versions {
        Some(("none", _)) => {
            format!("pip finds no {package} at all: PyPI cannot be reached, or has none for this machine")
        }
        Some((versions, _)) => format!("there is no {package} {release} for this machine, only {versions}"),
        None => {
            let error = stderr.lines().rev().find(|line| line.starts_with("ERROR: "));
            let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
            format!(
                "pip cannot download {package} {release}: {}",
                error.or(last).unwrap_or("it does not say why")
            )
        }
    }
}

/// Takes what is wanted out of a wheel, which is a zip archive.
fn unpack(wheel: &Wheel<'_>, file: &Path, into: &Path) -> Result<()> {
    let mut archive = ZipArchive::new(File::open(file)?)?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        // `enclosed_name` is none for a path that leads out of the folder.
        let Some(path) = entry.enclosed_name() else { continue };
        let Some(path) = (wheel.place)(&path).filter(|_| !entry.is_dir()) else { continue };
        let target = into.join(path);
        fs::create_dir_all(target.parent().unwrap_or(into))?;
        io::copy(&mut entry, &mut File::create(&target)?)?;
        if entry.unix_mode().is_some_and(|mode| mode & 0o100 != 0) {
            fs::set_permissions(&target, PermissionsExt::from_mode(0o755))?;
        }
    }
    for needed in wheel.needed {
        if !into.join(needed).is_file() {
            bail!("it has no {needed}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages() {
        assert_eq!(package("2.13.4").unwrap(), "nvidia-nccl-cu11");
        assert_eq!(package("2.16.5").unwrap(), "nvidia-nccl-cu12");
        assert_eq!(package("2.26.2.post1").unwrap(), "nvidia-nccl-cu12");
        for wrong in ["", "2.32", "../2.3.4", "2.3.4/x", "2.3.4..", "-r.1.2", "latest"] {
            assert!(package(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn failures_of_pip_are_one_sentence() {
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

//! Packages of the Python package index, kept outside the tree: NVIDIA's own of NCCL, and what it is compared with.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

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

/// The library, in the folder of a release.
const LIBRARY: &str = "lib/libnccl.so.2";

/// How many packages are downloaded at once.
const AT_ONCE: usize = 4;

/// What is wanted of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Less than two megabytes.
    Headers,
    /// Some hundred.
    All,
}

/// The folder that holds `lib/` and `include/` of a release. The first call for a release downloads it.
pub(crate) fn obtain(release: &str) -> Result<PathBuf> {
    obtain_part(release, Part::All)
}

/// The folder that holds what is wanted of a release, and may hold the rest. The first call downloads it: all of it,
/// as there is no other way, but only what is wanted is kept.
pub(crate) fn obtain_part(release: &str, part: Part) -> Result<PathBuf> {
    fn headers(path: &Path) -> Option<&Path> {
        let path = path.strip_prefix("nvidia/nccl").ok()?;
        path.starts_with("include").then_some(path)
    }
    fn all(path: &Path) -> Option<&Path> {
        let path = path.strip_prefix("nvidia/nccl").ok()?;
        (path.starts_with("include") || path == Path::new(LIBRARY)).then_some(path)
    }
    obtain_wheel(&Wheel {
        package: &package(release)?,
        release,
        folder: release,
        size: "some hundred megabytes",
        place: if part == Part::All { all } else { headers },
        needed: if part == Part::All { &["include/nccl.h", LIBRARY] } else { &["include/nccl.h"] },
    })
}

/// Downloads what is not there yet, several at a time. What fails will be tried again, and reported, by whoever
/// obtains it.
pub(crate) fn obtain_ahead(releases: &[String], part: Part) {
    let queue = Mutex::new(releases.iter());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                // The lock is not held during the download.
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(release) = next() {
                    let _ = obtain_part(release, part);
                }
            });
        }
    });
}

/// Whether the library of a release is kept.
pub(crate) fn has_library(release: &str) -> Result<bool> {
    Ok(cache()?.join(release).join(LIBRARY).is_file())
}

/// Keeps the headers of a release only.
pub(crate) fn drop_library(release: &str) -> Result<()> {
    let file = cache()?.join(release).join(LIBRARY);
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
}

/// The folder that holds what is wanted of a wheel. The first call downloads it.
pub(crate) fn obtain_wheel(wheel: &Wheel<'_>) -> Result<PathBuf> {
    let Wheel { package, release, .. } = wheel;
    let cache = cache()?;
    let folder = cache.join(wheel.folder);
    if is_complete(wheel, &folder) {
        return Ok(folder);
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    // Unpacked aside and renamed at the end: a file is there as a whole or not at all.
    let scratch = tempfile::Builder::new().prefix(".unfinished-").tempdir_in(&cache)?;
    let unpacked = scratch.path().join("unpacked");
    eprintln!("downloading {package} {release} from PyPI, {}", wheel.size);
    let file = download(package, release, &scratch.path().join("wheel"))?;
    unpack(wheel, &file, &unpacked).with_context(|| format!("cannot unpack {package} {release}"))?;
    match fs::rename(&unpacked, &folder) {
        // Somebody else was faster, or there was a part of it.
        Err(_) if folder.is_dir() => complete(wheel, &unpacked, &folder),
        result => result,
    }
    .with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

fn is_complete(wheel: &Wheel<'_>, folder: &Path) -> bool {
    wheel.needed.iter().all(|needed| folder.join(needed).is_file())
}

/// Moves what a folder lacks into it.
fn complete(wheel: &Wheel<'_>, unpacked: &Path, folder: &Path) -> io::Result<()> {
    for needed in wheel.needed.iter().filter(|needed| !folder.join(needed).is_file()) {
        let target = folder.join(needed);
        fs::create_dir_all(target.parent().unwrap_or(folder))?;
        fs::rename(unpacked.join(needed), target)?;
    }
    Ok(())
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
    fn a_folder_without_its_library_is_completed() {
        let directory = tempfile::tempdir().unwrap();
        let (unpacked, folder) = (directory.path().join("unpacked"), directory.path().join("2.3.4"));
        for (root, text) in [(&unpacked, "new"), (&folder, "old")] {
            fs::create_dir_all(root.join("include")).unwrap();
            fs::write(root.join("include/nccl.h"), text).unwrap();
        }
        fs::create_dir_all(unpacked.join("lib")).unwrap();
        fs::write(unpacked.join(LIBRARY), "new").unwrap();
        let wheel = Wheel {
            package: "p",
            release: "2.3.4",
            folder: "2.3.4",
            size: "",
            place: |path| Some(path),
            needed: &["include/nccl.h", LIBRARY],
        };
        assert!(is_complete(&wheel, &unpacked) && !is_complete(&wheel, &folder));
        complete(&wheel, &unpacked, &folder).unwrap();
        assert!(is_complete(&wheel, &folder));
        assert_eq!(fs::read_to_string(folder.join("include/nccl.h")).unwrap(), "old");
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

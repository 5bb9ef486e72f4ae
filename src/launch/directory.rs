//! A directory in which rank 0 publishes its address.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::announcement::{Announcement, MAX_BYTES};
use super::job::Job;

/// An announcement in a file. Rank 0 removes it when it is dropped.
#[derive(Debug)]
pub(super) struct Published {
    path: PathBuf,
    text: String,
}

/// Publishes an announcement: complete or not at all, in place of that of an earlier job.
pub(super) fn publish(directory: &Path, job: &Job, announcement: &Announcement) -> io::Result<Published> {
    let (path, text) = (file(directory, job), announcement.to_string());
    let new = path.with_extension(format!("{:032x}", u128::from_be_bytes(announcement.nonce)));
    let write = |mut file: File| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)
    };
    let written = File::create_new(&new).and_then(write);
    if let Err(error) = written {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    Ok(Published { path, text })
}

impl Drop for Published {
    fn drop(&mut self) {
        // Another job may have replaced it.
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the announcement, and a description of the file.
pub(super) fn read(directory: &Path, job: &Job) -> Result<(Announcement, String), String> {
    let path = file(directory, job);
    let read = || {
        let file = File::open(&path)?;
        let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
        let mut bytes = Vec::new();
        file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok((bytes, age))
    };
    let problem = |error: io::Error| format!("{}: {error}", path.display());
    let (bytes, age) = read().map_err(problem)?;
    let announcement = Announcement::parse(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((announcement, format!("{}, written {} s ago", path.display(), age.as_secs())))
}

fn file(directory: &Path, job: &Job) -> PathBuf {
    directory.join(format!("libnccl-{:032x}", u128::from_be_bytes(job.hash)))
}

/// Creates a directory that only this user can access, if it does not exist, and checks that it is one.
#[cfg(unix)]
pub(super) fn create_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;

    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_private(directory),
        result => result,
    }
}

/// Fails if another user could have published in the directory.
#[cfg(unix)]
pub(super) fn check_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;

    let found = fs::symlink_metadata(directory)?;
    // The owner of the process, where the system says it.
    let user = fs::metadata("/proc/self").map_or_else(|_| found.uid(), |process| process.uid());
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let problem = format!("{} is not a directory of this user alone", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

#[cfg(not(unix))]
pub(super) fn create_private(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)
}

#[cfg(not(unix))]
pub(super) fn check_private(directory: &Path) -> io::Result<()> {
    fs::metadata(directory).map(drop)
}

//! A directory in which rank 0 publishes its address.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::announcement::{Announcement, MAX_BYTES};
use rustix::fs::OFlags;

/// A published announcement. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Published {
    path: PathBuf,
    text: String,
}

/// Writes an announcement atomically. An earlier announcement of the job is replaced.
pub(super) fn publish(directory: &Path, job: u128, announcement: &Announcement) -> io::Result<Published> {
    let (path, text) = (file(directory, job), announcement.to_string());
    let new = path.with_extension(format!("{:032x}", announcement.nonce));
    let write = |mut file: File| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)
    };
    File::create_new(&new).and_then(write).inspect_err(|_| drop(fs::remove_file(&new)))?;
    Ok(Published { path, text })
}

impl Drop for Published {
    fn drop(&mut self) {
        // Another job may have replaced it.
        if read_file(&self.path).is_ok_and(|(bytes, _)| bytes == self.text.as_bytes()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns a job's announcement, and a description of its file for error messages.
pub(super) fn read(directory: &Path, job: u128) -> Result<(Announcement, String), String> {
    let path = file(directory, job);
    let (bytes, age) = read_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let announcement = Announcement::parse(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    // If the clock of a file server is ahead, an old file seems new.
    let written = age.map_or_else(|| "in the future".into(), |age| format!("{} s ago", age.as_secs()));
    Ok((announcement, format!("{}, written {written}", path.display())))
}

/// Reads up to one byte more than the longest announcement. Returns the age too, unless the file's time is in the future.
fn read_file(path: &Path) -> io::Result<(Vec<u8>, Option<Duration>)> {
    // Opening a FIFO would wait for a writer.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes, metadata.modified()?.elapsed().ok()))
}

/// The prefix of the names of the directories that rank 0 creates.
pub(super) const OWN: &str = "libnccl-launch-";

/// Removes directories next to `directory` that a killed rank 0 of this user has left behind.
pub(super) fn remove_leftovers(directory: &Path) {
    let beside = directory.parent().and_then(|parent| fs::read_dir(parent).ok());
    for other in beside.into_iter().flatten().flatten() {
        let is_other = |name: &str| name.starts_with(OWN) && directory.file_name() != Some(name.as_ref());
        if !other.file_name().to_str().is_some_and(is_other) || check_private(&other.path()).is_err() {
            continue;
        }
        let files = || fs::read_dir(other.path()).into_iter().flatten().flatten().map(|file| file.path());
        // An empty directory may belong to a launch that is starting now.
        if files().next().is_some() && files().all(|file| is_left(&file)) {
            files().for_each(|file| drop(fs::remove_file(file)));
            let _ = fs::remove_dir(other.path());
        }
    }
}

/// Returns whether a file contains the address of a rank 0 that no longer listens on this host.
fn is_left(file: &Path) -> bool {
    let announcement = read_file(file).ok().and_then(|(bytes, _)| Announcement::parse(&bytes).ok());
    announcement.is_some_and(|found| TcpListener::bind((Ipv4Addr::LOCALHOST, found.port)).is_ok())
}

fn file(directory: &Path, job: u128) -> PathBuf {
    directory.join(format!("libnccl-{job:032x}"))
}

/// Creates a directory that only this user can access, or checks that the existing one is private.
pub(super) fn create_private(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_private(directory),
        result => result,
    }
}

/// Fails if another user could have created files in the directory.
pub(super) fn check_private(directory: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    let user = fs::metadata("/proc/self").map_or_else(|_| found.uid(), |process| process.uid());
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let problem = format!("{} is not a directory of this user alone", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

#[cfg(all(test, target_os = "linux"))]
#[path = "../tests/unit/directory.rs"]
mod tests;

//! The recording of the process, and the events at which it is written.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use libnccl::internal::environment::variable;
use libnccl::observer::Membership;
use libnccl_observe::variables::RECORDER_FILE;
use libnccl_observe::{Recorder, private_file};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::per_process::PerProcess;
use crate::registry;

/// The path of the recording, once it is written.
static FILE: PerProcess<Mutex<Option<PathBuf>>> = PerProcess::new();

/// The recordings that existed before this process started, from earlier jobs.
static OLD: OnceLock<Vec<Identity>> = OnceLock::new();

/// Prints a message if `LIBNCCL_RECORDER_FILE` is not set.
pub(crate) fn prepare() {
    if prefix().is_none() {
        say(&format!("{RECORDER_FILE} is not set, so that no recording is written"));
    }
}

/// Forgets the parent's file, in a forked child.
pub(crate) fn forget() {
    FILE.forget();
}

/// Writes the recording of the process, if it has had communicators and the environment names a file.
#[cold]
pub(crate) fn write(reason: &str) {
    // No panic may leave a C function.
    let written = panic::catch_unwind(|| try_write(reason));
    if let Ok(Err(error)) = written {
        say(&error.to_string());
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
struct WriteError {
    path: PathBuf,
    source: io::Error,
}

fn try_write(reason: &str) -> Result<(), WriteError> {
    let communicators = registry::all();
    let recorders: Vec<_> =
        communicators.iter().map(|communicator| communicator.recorder().clone()).collect();
    // The largest communicator contains all ranks.
    let largest = recorders.iter().map(Recorder::membership).min_by_key(|one| Reverse(one.size));
    let (Some(Membership { rank, .. }), Some(prefix)) = (largest, prefix()) else { return Ok(()) };
    let mut file = FILE.get().lock().unwrap_or_else(PoisonError::into_inner);
    let json = Recorder::list_to_json(reason, &recorders);
    let named = |end: String| {
        let mut path = prefix.clone();
        path.push(end);
        PathBuf::from(path)
    };
    // Held until this process has its file: others with the same rank may end at the same time.
    let _turn = file.is_none().then(|| lock(directory(Path::new(&prefix))));
    let path = file.take().unwrap_or_else(|| {
        let usual = named(format!("{rank}.json"));
        if is_of_this_job(&usual) { named(format!("{rank}.{}.json", process::id())) } else { usual }
    });
    private_file::write(&path, json.as_bytes())
        .map_err(|source| WriteError { path: path.clone(), source })?;
    *file = Some(path);
    Ok(())
}

/// Returns whether another process with the same rank has written the file since this process started.
fn is_of_this_job(file: &Path) -> bool {
    identity(file).is_ok_and(|file| OLD.get().is_some_and(|old| !old.contains(&file)))
}

/// The identity of a file, which distinguishes it from a later file with the same name. A time alone is not enough, because file
/// times lag by some milliseconds.
type Identity = (u64, u64, i64, i64);

fn identity(file: &Path) -> io::Result<Identity> {
    fs::symlink_metadata(file).map(|file| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec()))
}

/// Returns the identities of the recordings in a directory.
fn recordings(directory: &Path) -> Vec<Identity> {
    let paths = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
    paths.filter_map(|path| identity(&path).ok()).collect()
}

/// Locks the directory until the result is dropped, so that no other process chooses its file meanwhile. Waits for about 1 s at
/// most.
fn lock(directory: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(directory, flags, Mode::empty()).ok()?;
    for _ in 0..200 {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(Duration::from_millis(5)),
            _ => break,
        }
    }
    Some(directory)
}

/// Returns the directory of the files that start with `prefix`.
fn directory(prefix: &Path) -> &Path {
    let is_directory = prefix.as_os_str().as_bytes().ends_with(b"/");
    let directory = if is_directory { Some(prefix) } else { prefix.parent() };
    directory.filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn prefix() -> Option<OsString> {
    variable(RECORDER_FILE).filter(|prefix| !prefix.is_empty())
}

fn say(message: &str) {
    // If stderr is closed, the message is lost. A single write, as other processes may print too.
    let _ = io::stderr().write_all(format!("libnccl-trace: {message}\n").as_bytes());
}

/// Runs when the process starts, before another process of the job can exit and write its recording.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn note_old_files() {
        let note = |prefix: OsString| drop(OLD.set(recordings(directory(Path::new(&prefix)))));
        // No panic may leave a C function.
        let _ = panic::catch_unwind(|| prefix().map(note));
    }
    note_old_files
};

/// Runs when the process exits, after all functions that the program has registered with `atexit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = {
    extern "C" fn write_at_exit() {
        write("exit");
    }
    write_at_exit
};

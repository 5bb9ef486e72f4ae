//! The recording of the process, and when it is written.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::panic;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use libnccl::Membership;
use libnccl::environment::variable;
use libnccl_observe::variables::RECORDER_FILE;
use libnccl_observe::{Recorder, private_file};

use crate::per_process::PerProcess;
use crate::registry;

/// The file of the process, once it is written.
static FILE: PerProcess<Mutex<Option<PathBuf>>> = PerProcess::new();

/// The time before which no other process of the job has written.
static START: OnceLock<SystemTime> = OnceLock::new();

/// Prepares to write.
pub(crate) fn prepare() {
    let _ = START.set(SystemTime::now());
    if prefix().is_none() {
        say(&format!("{RECORDER_FILE} is not set, so that no recording is written"));
    }
}

/// Forgets the parent's file, in a forked child.
pub(crate) fn forget() {
    FILE.forget();
}

/// Writes the recording of the process, if it has had communicators and the environment says where.
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
    // The largest one is that of all ranks.
    let largest = recorders.iter().map(Recorder::membership).min_by_key(|one| Reverse(one.size));
    let (Some(Membership { rank, .. }), Some(prefix)) = (largest, prefix()) else { return Ok(()) };
    let mut file = FILE.get().lock().unwrap_or_else(PoisonError::into_inner);
    let json = Recorder::list_to_json(reason, &recorders);
    let named = |end: String| {
        let mut path = prefix.clone();
        path.push(end);
        PathBuf::from(path)
    };
    let path = file.take().unwrap_or_else(|| {
        let usual = named(format!("{rank}.json"));
        if is_of_this_job(&usual) { named(format!("{rank}.{}.json", process::id())) } else { usual }
    });
    private_file::write(&path, json.as_bytes())
        .map_err(|source| WriteError { path: path.clone(), source })?;
    *file = Some(path);
    Ok(())
}

/// Returns whether another process with the same rank has written the file since this one has started.
fn is_of_this_job(file: &Path) -> bool {
    let modified = fs::metadata(file).and_then(|file| file.modified());
    modified.is_ok_and(|modified| START.get().is_some_and(|start| modified >= *start))
}

fn prefix() -> Option<OsString> {
    variable(RECORDER_FILE).filter(|prefix| !prefix.is_empty())
}

fn say(message: &str) {
    // Without stderr, nobody could be told. A single write, as other processes may print too.
    let _ = io::stderr().write_all(format!("libnccl-trace: {message}\n").as_bytes());
}

/// Runs at the end of the process, after all functions that the program has registered for it.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = {
    extern "C" fn write_at_exit() {
        write("exit");
    }
    write_at_exit
};

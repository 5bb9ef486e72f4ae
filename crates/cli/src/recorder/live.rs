//! Recordings of running processes, requested with a signal.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use itertools::Itertools;
use libnccl::internal::places;
use libnccl_observe::variables::{RECORDER_FILE, RECORDER_SIGNAL};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Deserialize;
use thiserror::Error;

use crate::run::{field, has_bit};
use crate::{file, output};

/// A process that writes a recording on a signal.
struct Rank {
    id: i32,
    /// Refers to this process even if another process gets its id.
    process: OwnedFd,
    signal: Signal,
    prefix: PathBuf,
    /// The process's id in its own PID namespace, which the recording contains.
    own_id: u32,
}

/// A process that is not configured to write recordings on a signal.
#[derive(Debug, Error)]
#[error("process {id} writes no recording on a signal: {name} is not set")]
struct NoVariable {
    id: i32,
    name: &'static str,
}

#[derive(Deserialize)]
struct Head {
    process: u32,
    time_ns: u64,
}

/// Requests recordings of processes or their descendants. Warns if one is not written within `limit`, and fails if none is.
pub(super) fn request(processes: &[i32], limit: Duration) -> Result<Vec<PathBuf>> {
    let mut ranks: Vec<Rank> = processes.iter().map(|id| find_ranks(*id)).flatten_ok().try_collect()?;
    let (start, time) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?);
    let mut problems = Vec::new();
    ranks.retain(|rank| {
        let sent = pidfd_send_signal(&rank.process, rank.signal);
        let problem = sent.err().map(|error| match error {
            Errno::SRCH => format!("process {} has exited", rank.id),
            error => format!("process {} cannot be sent a signal: {error}", rank.id),
        });
        problems.extend(problem.clone());
        problem.is_none()
    });
    let mut files = Vec::new();
    loop {
        ranks.retain(|rank| {
            let file = rank.file(time);
            files.extend(file.clone());
            file.is_none()
        });
        if ranks.is_empty() || start.elapsed() >= limit {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    problems.extend(ranks.iter().map(|rank| {
        let (id, prefix) = (rank.id, rank.prefix.display());
        let reason = "it is stopped, or cannot write it";
        format!("process {id} has not written {prefix}*.json within {limit:?}: {reason}")
    }));
    if files.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    problems.iter().for_each(|problem| anstream::eprintln!("warning: {}", output::in_line(problem)));
    Ok(files)
}

/// Returns the process if it writes recordings on a signal, or else its descendants that do. If there are none, the error is
/// preferably about a process that is configured to write recordings.
fn find_ranks(id: i32) -> Result<Vec<Rank>> {
    let mut problem = match Rank::open(id) {
        Ok(rank) => return Ok(vec![rank]),
        Err(problem) => problem,
    };
    let mut ranks = Vec::new();
    for child in children(id) {
        match find_ranks(child) {
            Ok(found) => ranks.extend(found),
            Err(of_child) if problem.is::<NoVariable>() && !of_child.is::<NoVariable>() => problem = of_child,
            Err(_) => {}
        }
    }
    if ranks.is_empty() { Err(problem) } else { Ok(ranks) }
}

fn threads(id: i32) -> impl Iterator<Item = PathBuf> {
    places::children(format!("/proc/{id}/task").as_ref())
}

fn children(id: i32) -> Vec<i32> {
    let lists = threads(id).filter_map(|thread| fs::read_to_string(thread.join("children")).ok());
    lists.flat_map(|list| list.split(' ').filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect()
}

impl Rank {
    fn open(id: i32) -> Result<Self> {
        let gone = || anyhow!("process {id} has exited");
        let process = Pid::from_raw(id).filter(|_| id > 0).ok_or_else(gone)?;
        let process = pidfd_open(process, PidfdFlags::empty()).map_err(|error| match error {
            Errno::SRCH => gone(),
            error => anyhow!("process {id}: {error}"),
        })?;
        let environment = fs::read(format!("/proc/{id}/environ"))
            .with_context(|| format!("the environment of process {id} cannot be read"))?;
        let value = |name| variable(&environment, name).ok_or(NoVariable { id, name });
        let name = value(RECORDER_SIGNAL)?;
        let signal = match name.to_str().map(|name| name.trim_start_matches("SIG")) {
            Some("USR1") => Signal::USR1,
            Some("USR2") => Signal::USR2,
            _ => bail!("{RECORDER_SIGNAL} of process {id} is {name:?}; expected USR1 or USR2"),
        };
        let file = PathBuf::from(value(RECORDER_FILE)?);
        let status = fs::read_to_string(format!("/proc/{id}/status"))
            .with_context(|| format!("the status of process {id} cannot be read"))?;
        // The thread that writes recordings, which a forked child does not inherit.
        let is_writer = |name: Vec<u8>| name == b"libnccl-signal\n";
        let has_writer = threads(id).any(|thread| fs::read(thread.join("comm")).is_ok_and(is_writer));
        let problem = match (has_bit(&status, "SigCgt:", signal.as_raw() - 1), has_writer) {
            (true, true) => None,
            (true, false) => Some("handles its signal, but not to write recordings"),
            (false, _) => Some("does not handle its signal, which would end it"),
        };
        if let Some(problem) = problem {
            bail!(
                "process {id} {problem}: {RECORDER_SIGNAL} is {}, but no communicator is recorded yet (LIBNCCL_RECORDER), or its \
                 libnccl lacks the feature `signal`",
                name.display()
            );
        }
        let directory = fs::read_link(format!("/proc/{id}/cwd")).unwrap_or_default();
        let own_id = field(&status, "NSpid:").and_then(|ids| ids.split_whitespace().last()?.parse().ok());
        let (prefix, own_id) = (directory.join(file), own_id.unwrap_or(id.unsigned_abs()));
        Ok(Self { id, process, signal, prefix, own_id })
    }

    /// Returns the recording if it was written after this time.
    fn file(&self, since: Duration) -> Option<PathBuf> {
        let (directory, name) = (self.prefix.parent()?, self.prefix.file_name().unwrap_or_default());
        places::children(directory).filter(|file| is_recording(file, name)).find(|path| {
            // If it cannot be read, it is not complete yet.
            let head = file::read(path).ok().and_then(|text| serde_json::from_slice::<Head>(&text).ok());
            head.is_some_and(|head| {
                head.process == self.own_id && u128::from(head.time_ns) >= since.as_nanos()
            })
        })
    }
}

/// Returns whether a path is the prefix followed by a number and `.json`.
fn is_recording(file: &Path, prefix: &OsStr) -> bool {
    let name = file.file_name().unwrap_or_default().as_bytes();
    let number = name.strip_prefix(prefix.as_bytes()).and_then(|rest| rest.strip_suffix(b".json"));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

fn variable(environment: &[u8], name: &str) -> Option<OsString> {
    let mut entries = environment.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(OsString::from_vec(value.to_vec()))
}

#[cfg(test)]
#[path = "../../tests/unit/recorder_live.rs"]
mod tests;

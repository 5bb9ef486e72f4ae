//! The recordings of a job, as `libnccl` writes them: docs/hangs.md has the schema.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

const FORMAT: &str = "libnccl recorder";
const VERSION: u32 = 1;

/// The recording of one process.
#[derive(Debug, Deserialize)]
struct Recording {
    format: String,
    version: u32,
    time_ns: u64,
    #[serde(default)]
    host: String,
    /// The id of the process.
    process: u32,
    communicators: Vec<Communicator>,
}

/// The process of a recording.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Process {
    host: String,
    id: u32,
}

/// The operations of one rank on a communicator.
#[derive(Debug, Deserialize)]
struct Communicator {
    /// An id that all ranks share; `None` if the library could not tell.
    id: Option<String>,
    name: Option<String>,
    rank: usize,
    size: usize,
    /// The oldest first. The ring may have lost those before.
    records: Vec<Record>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Record {
    /// The number on this rank, from 1.
    pub(super) number: u64,
    /// The number among the collectives, from 1.
    pub(super) collective: Option<u64>,
    pub(super) operation: String,
    pub(super) data_type: Option<String>,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// The root, or the rank at the other end.
    pub(super) peer: Option<usize>,
    /// The rank from which a `sendrecv` receives.
    #[serde(default)]
    pub(super) source: Option<usize>,
    /// The number of the first operation of the same group.
    pub(super) group: Option<u64>,
    #[serde(default)]
    pub(super) site: Option<Site>,
    pub(super) queued_ns: u64,
    #[serde(default)]
    pub(super) completed_ns: Option<u64>,
    pub(super) state: State,
}

#[derive(Debug, Deserialize)]
pub(super) struct Site {
    file: String,
    line: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// The call has not returned.
    Called,
    Queued,
    Completed,
    /// The call returned an error, as after a timeout.
    Failed,
}

impl State {
    /// Returns `true` if the operation did not complete, and its rank has waited for others, or still does.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Called | Self::Failed)
    }
}

/// The ranks of one communicator that have a recording.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: String,
    pub(super) name: Option<String>,
    pub(super) size: usize,
    pub(super) ranks: BTreeMap<usize, Rank>,
}

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) process: Process,
    pub(super) records: Vec<Record>,
    /// Nanoseconds since 1970.
    read: u64,
}

/// Reads the recordings of files, and of the files `*.json` in folders, as one job for each communicator.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<Job>> {
    let mut jobs: Vec<Job> = Vec::new();
    for path in files(paths)? {
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let recording = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a recording of libnccl", path.display()))?;
        add(&mut jobs, recording).with_context(|| path.display().to_string())?;
    }
    Ok(jobs)
}

fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let folder = |path: &Path| format!("cannot read the folder {}", path.display());
        let entries = fs::read_dir(path).with_context(|| folder(path))?;
        let mut found = Vec::new();
        for entry in entries {
            let file = entry.with_context(|| folder(path))?.path();
            if file.extension().is_some_and(|extension| extension == "json") {
                found.push(file);
            }
        }
        if found.is_empty() {
            bail!("no recording in the folder {}: expected files *.json", path.display());
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

fn add(jobs: &mut Vec<Job>, recording: Recording) -> Result<()> {
    let Recording { format, version, time_ns, host, process, communicators } = recording;
    if (format.as_str(), version) != (FORMAT, VERSION) {
        bail!("it is of format {format} {version}, and this program reads {FORMAT} {VERSION}");
    }
    let process = Process { host, id: process };
    for Communicator { id, name, rank, size, records } in communicators {
        let id = id.unwrap_or_else(|| format!("of {size} ranks, without an id"));
        if rank >= size {
            bail!("rank {rank} of {size} on communicator {id}");
        }
        let known = jobs.iter().position(|job| job.id == id).unwrap_or(jobs.len());
        if known == jobs.len() {
            jobs.push(Job { id, name, size, ranks: BTreeMap::new() });
        }
        let job = &mut jobs[known];
        if job.size != size {
            bail!("rank {rank} has {size} ranks on {job}, and another one {}", job.size);
        }
        let new = Rank { process: process.clone(), records, read: time_ns };
        // Of two recordings of one rank, that with more operations; of equal ones the older, in which calls still wait.
        let order = |rank: &Rank| (rank.records.last().map_or(0, |record| record.number), Reverse(rank.read));
        match job.ranks.get(&rank) {
            Some(old) if order(old) >= order(&new) => {}
            _ => drop(job.ranks.insert(rank, new)),
        }
    }
    Ok(())
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) if !name.is_empty() => write!(f, "communicator {name} ({})", self.id),
            _ => write!(f, "communicator {}", self.id),
        }
    }
}

impl Rank {
    /// Returns the collective of this number, if the rank has called it and still has it.
    pub(super) fn collective(&self, number: u64) -> Option<&Record> {
        self.records.iter().find(|record| record.collective == Some(number))
    }

    /// Returns the number of the last collective.
    pub(super) fn last_collective(&self) -> u64 {
        self.records.iter().rev().find_map(|record| record.collective).unwrap_or(0)
    }

    /// Returns the number of the first collective that the ring still has.
    pub(super) fn first_collective(&self) -> u64 {
        self.records.iter().find_map(|record| record.collective).unwrap_or(1)
    }

    /// Returns `true` if the ring has lost no operation.
    pub(super) fn is_whole(&self) -> bool {
        self.records.first().is_none_or(|record| record.number == 1)
    }

    /// Returns the first operation that is called and not completed.
    pub(super) fn open_call(&self) -> Option<&Record> {
        self.records.iter().find(|record| record.state.is_open())
    }
}

impl Record {
    /// Returns the operation without its form: in place or not is each rank's own matter.
    pub(super) fn kind(&self) -> &str {
        self.operation.strip_suffix("_in_place").unwrap_or(&self.operation)
    }
}

/// The operation with its arguments: `all_reduce of 4 x float`.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, received, .. } = self;
        f.write_str(&self.operation)?;
        let elements = match (sent, received) {
            (sent, received) if sent == received => sent.to_string(),
            (0, received) => received.to_string(),
            (sent, 0) => sent.to_string(),
            (sent, received) => format!("{sent} to {received}"),
        };
        if let Some(data_type) = &self.data_type {
            write!(f, " of {elements} {data_type}")?;
        }
        match (self.kind(), self.peer, self.source) {
            (_, None, _) => Ok(()),
            ("send" | "put_signal" | "signal", Some(peer), _) => write!(f, " to rank {peer}"),
            ("recv" | "wait_signal", Some(peer), _) => write!(f, " from rank {peer}"),
            ("sendrecv", Some(peer), Some(source)) => write!(f, " to rank {peer} and from rank {source}"),
            (_, Some(root), _) => write!(f, " with root {root}"),
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

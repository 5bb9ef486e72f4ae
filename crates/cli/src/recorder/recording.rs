//! The recordings of a job, in libnccl's format: docs/hangs.md has the schema.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{fmt, io};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use itertools::Itertools;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::pytorch;
use crate::{file, output};

const FORMAT: &str = "libnccl recorder";
const VERSION: u32 = 1;

/// The size of the largest communicator: NCCL's ranks are of the type `int`.
const MAX_SIZE: usize = i32::MAX as usize;

#[derive(Debug, Deserialize)]
struct Recording {
    format: String,
    version: u32,
    time_ns: u64,
    #[serde(default)]
    host: String,
    process: u32,
    library: Option<LibraryFile>,
    communicators: Vec<Communicator>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct LibraryFile {
    path: String,
    pub(super) size: Option<u64>,
    pub(super) build_id: Option<String>,
    pub(super) hash: Option<String>,
}

/// The host and the id of a process.
pub(super) type Process = (String, u32);

/// The operations of one rank on a communicator.
#[derive(Debug, Deserialize)]
struct Communicator {
    /// An id that all ranks share; `None` if the library did not provide one.
    id: Option<String>,
    name: Option<String>,
    rank: usize,
    size: usize,
    /// The number of the last operation at a time before the records were read.
    count: Option<u64>,
    /// The records, oldest first. The ring may have overwritten earlier ones.
    records: Vec<Record>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Record {
    /// The operation's number on this rank, from 1.
    pub(super) number: u64,
    /// The number among this rank's collectives, from 1; `None` for other operations.
    #[serde(deserialize_with = "Option::deserialize")]
    pub(super) collective: Option<u64>,
    pub(super) operation: String,
    /// The C function, if the program called NCCL's C interface.
    function: Option<String>,
    pub(super) data_type: Option<String>,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// The root or the peer.
    pub(super) peer: Option<usize>,
    /// The rank from which a `send_recv` receives.
    pub(super) source: Option<usize>,
    /// The number of the first operation of the same group.
    pub(super) group: Option<u64>,
    pub(super) site: Option<Site>,
    pub(super) queued_ns: u64,
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
    /// The call returned an error, for example after a timeout.
    Failed,
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
    pub(super) process: Rc<Process>,
    pub(super) library: Option<Rc<LibraryFile>>,
    /// The records, in increasing order of their numbers.
    pub(super) records: Vec<Record>,
    /// The time when the records were read, in nanoseconds since 1970.
    read: u64,
}

#[derive(Debug, Default)]
pub(super) struct Recordings {
    /// One job per communicator.
    pub(super) jobs: Vec<Job>,
    /// The files that are not compared, with the reasons.
    pub(super) left_out: Vec<String>,
    /// Set if one of the files in `left_out` may be a recording of the job.
    pub(super) lacks_some: bool,
}

/// A file that may have a recording.
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    /// Set if the user named the file itself, not its directory.
    pub(super) is_named: bool,
    pub(super) bytes: Result<Vec<u8>>,
}

/// Reads the files, possible recordings in the directories, and files that ranks have `written`.
pub(super) fn candidates(paths: &[PathBuf], written: Vec<PathBuf>) -> Result<Vec<Candidate>> {
    let read = |(path, is_named): (PathBuf, bool)| Candidate { bytes: file::read(&path), path, is_named };
    let written = written.into_iter().map(|path| (path, false));
    Ok(files(paths)?.into_iter().chain(written).map(read).collect())
}

/// Parses libnccl's recordings. Any other file is left out, or an error if the user named it or if there are no recordings.
pub(super) fn read(candidates: Vec<Candidate>) -> Result<Recordings> {
    let (mut all, mut parsed) = (Recordings::default(), vec![]);
    let candidates = candidates.into_iter().filter(|file| file.is_named || is_json(&file.path));
    for Candidate { path, is_named, bytes } in candidates {
        match bytes {
            Err(error) => all.leave_out(error, is_named, true)?,
            Ok(text) => match parse(&text, &path) {
                Ok(own) => parsed.push((path, is_named, own)),
                Err(error) => {
                    // Complete JSON of another kind is no recording of the job.
                    let value = serde_json::from_slice::<Value>(&text);
                    let is_foreign = value.is_ok_and(|value| value["format"] != FORMAT);
                    all.leave_out(error, is_named, !is_foreign)?;
                }
            },
        }
    }
    let are_earlier = earlier(parsed.iter().map(|(.., own)| &own[..]).collect());
    let (mut known, mut is_empty) = (BTreeMap::new(), true);
    for ((path, is_named, own), is_earlier) in parsed.into_iter().zip(are_earlier) {
        if is_earlier && !is_named {
            let why = "of an earlier job, as it was written before the others began";
            all.leave_out(anyhow!("{}: {why}", path.display()), false, false)?;
        } else if let Err(error) = add(&mut all.jobs, &mut known, own, &path) {
            all.leave_out(error, is_named, true)?;
        } else {
            is_empty = false;
        }
    }
    ensure!(!is_empty, "{}", all.left_out.join("\n"));
    Ok(all)
}

impl Recordings {
    fn leave_out(&mut self, error: Error, is_named: bool, may_be_of_the_job: bool) -> Result<()> {
        if is_named {
            return Err(error);
        }
        self.left_out.push(format!("{error:#}"));
        self.lacks_some |= may_be_of_the_job;
        Ok(())
    }
}

/// Returns for each recording whether it is from an earlier job.
///
/// A recording is from an earlier job if it was written before the first operation of another one, and so were all recordings
/// that share a communicator with it, directly or indirectly. A ring that has overwritten its first operation proves nothing.
fn earlier(recordings: Vec<&[Own]>) -> Vec<bool> {
    // Recordings that share communicators get the smallest index among them.
    let mut groups: Vec<usize> = (0..recordings.len()).collect();
    loop {
        let before = groups.clone();
        let mut of_job: BTreeMap<&str, usize> = BTreeMap::new();
        for (own, group) in recordings.iter().zip(&mut groups) {
            for (job, ..) in *own {
                let least = of_job.entry(&job.id).or_insert(*group);
                *group = (*group).min(*least);
                *least = *group;
            }
        }
        if groups == before {
            break;
        }
    }
    let of_groups = recordings.iter().zip(&groups);
    let ranks = of_groups.flat_map(|(own, group)| own.iter().map(|(.., rank)| (*group, rank))).collect_vec();
    let written = ranks.iter().map(|(group, rank)| (*group, rank.read)).into_grouping_map().max();
    let begun = ranks.iter().filter_map(|(group, rank)| {
        let first = rank.records.first()?;
        Some((*group, rank.is_whole().then_some(first.queued_ns)))
    });
    let newest = begun.into_grouping_map().min().into_values().flatten().max();
    let is_earlier =
        |group: &usize| newest.zip(written.get(group)).is_some_and(|(begun, last)| *last < begun);
    groups.iter().map(is_earlier).collect()
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Returns the files, and whether the paths name them directly.
fn files(paths: &[PathBuf]) -> Result<Vec<(PathBuf, bool)>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push((path.clone(), true));
            continue;
        }
        let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = entries.with_context(|| format!("cannot read the directory {}", path.display()))?;
        let is_possible = |file: &PathBuf| is_json(file) || pytorch::rank_of(file).is_some();
        let found = entries.iter().map(DirEntry::path).filter(is_possible).sorted();
        ensure!(
            found.len() > 0,
            "no recording in the directory {}: expected files *.json, or dumps of PyTorch whose names end in the rank",
            path.display()
        );
        files.extend(found.map(|file| (file, false)));
    }
    Ok(files)
}

/// A rank of a process on a communicator, before it is merged with other ranks.
type Own = (Job, usize, Rank);

fn parse(text: &[u8], path: &Path) -> Result<Vec<Own>> {
    let recording: Recording = serde_json::from_slice(text)
        .with_context(|| format!("{} is not a recording of libnccl", path.display()))?;
    let Recording { format, version, time_ns, host, process, library, communicators } = recording;
    if (format.as_str(), version) != (FORMAT, VERSION) {
        bail!(
            "{}: it is of format {format} {version}, and this program reads {FORMAT} {VERSION}",
            path.display()
        );
    }
    let (process, library) = (Rc::new((host, process)), library.map(Rc::new));
    let own = communicators.into_iter().map(|Communicator { id, name, rank, size, count, records }| {
        let id = id.unwrap_or_else(|| format!("of {size} ranks, without an id"));
        ensure!(size <= MAX_SIZE, "size {size} of communicator {id}: expected {MAX_SIZE} at most");
        ensure!(rank < size, "rank {rank} of {size} on communicator {id}: expected a rank below the size");
        let job = Job { id, name, size, ranks: BTreeMap::new() };
        let own = Rank::new(process.clone(), count, records, time_ns);
        let own = own.with_context(|| format!("rank {rank} on {job}"))?;
        Ok((job, rank, Rank { library: library.clone(), ..own }))
    });
    own.collect::<Result<Vec<Own>>>().with_context(|| path.display().to_string())
}

/// Adds the ranks of a recording to the jobs: either all or, on an error, none. `known` has the indices of the jobs by id.
fn add(jobs: &mut Vec<Job>, known: &mut BTreeMap<String, usize>, all: Vec<Own>, path: &Path) -> Result<()> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for (job, rank, _) in &all {
        let size = known.get(&job.id).map_or(job.size, |index| jobs[*index].size);
        let other = *sizes.entry(&job.id).or_insert(size);
        let (path, size) = (path.display(), job.size);
        ensure!(size == other, "{path}: rank {rank} has {size} ranks on {job}, and another one {other}");
    }
    for (job, rank, new) in all {
        let index = *known.entry(job.id.clone()).or_insert_with(|| {
            jobs.push(job);
            jobs.len() - 1
        });
        let job = &mut jobs[index];
        // Of two recordings of one rank, keeps the one with more operations; in a tie the older one, in which calls still wait.
        let order = |rank: &Rank| (rank.records.last().map_or(0, |record| record.number), Reverse(rank.read));
        match job.ranks.get(&rank) {
            Some(old) if order(old) >= order(&new) => {}
            _ => drop(job.ranks.insert(rank, new)),
        }
    }
    Ok(())
}

impl Job {
    /// Returns each rank's first operation that was called but not completed, if any.
    pub(super) fn open_calls(&self) -> impl Iterator<Item = (usize, &Record)> {
        self.ranks.iter().filter_map(|(rank, recorded)| Some((*rank, recorded.open_call()?)))
    }

    /// Returns the ranks without a recording as ranges, because there may be very many.
    pub(super) fn missing(&self) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.ranks.keys().copied().chain([self.size]).filter_map(move |end| {
            let gap = start..end;
            start = end + 1;
            (!gap.is_empty()).then_some(gap)
        })
    }
}

impl fmt::Display for LibraryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", output::in_line(&self.path))?;
        let size = self.size.map(|size| format!(" of {size} bytes")).unwrap_or_default();
        let id = output::in_line(self.build_id.as_deref().unwrap_or("unknown"));
        write!(f, "{size}, build id {id}")?;
        self.hash.iter().try_for_each(|hash| write!(f, ", hash {}", output::in_line(hash)))
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = output::in_line(&self.id);
        match &self.name {
            Some(name) if !name.is_empty() => {
                write!(f, "communicator {} ({id})", output::in_line(name))
            }
            _ => write!(f, "communicator {id}"),
        }
    }
}

impl Rank {
    /// Returns a rank with these records. Fails if their numbers do not increase.
    fn new(process: Rc<Process>, count: Option<u64>, records: Vec<Record>, read: u64) -> Result<Self> {
        let (mut last, mut before) = (0, 0);
        for Record { number, collective, .. } in &records {
            ensure!(*number > last, "operation number {number}: expected one above {last}");
            last = *number;
            if let Some(own) = *collective {
                ensure!(own > before, "collective number {own}: expected one above {before}");
                before = own;
            }
        }
        let count = count.unwrap_or(0);
        // Otherwise the rank would seem to have called nothing.
        let expected = "a record of the last operation at least";
        ensure!(count == 0 || !records.is_empty(), "count {count}: expected {expected}");
        ensure!(count <= last, "count {count}: expected {last} at most, the number of the last operation");
        Ok(Self { process, library: None, records, read })
    }

    /// Returns the recorded collectives with their increasing numbers.
    pub(super) fn collectives(&self) -> impl Iterator<Item = (u64, &Record)> {
        self.records.iter().filter_map(|record| Some((record.collective?, record)))
    }

    pub(super) fn last_collective(&self) -> u64 {
        self.records.iter().rev().find_map(|record| record.collective).unwrap_or(0)
    }

    pub(super) fn first_collective(&self) -> u64 {
        self.records.iter().find_map(|record| record.collective).unwrap_or(1)
    }

    /// Returns whether the ring has not overwritten any operation.
    pub(super) fn is_whole(&self) -> bool {
        self.records.first().is_none_or(|record| record.number == 1)
    }

    /// Returns the first operation that was called but not completed.
    pub(super) fn open_call(&self) -> Option<&Record> {
        // The rank waited or still waits for others.
        self.records.iter().find(|record| matches!(record.state, State::Called | State::Failed))
    }
}

impl Record {
    /// Returns the operation's name without its form: ranks may differ in whether they call it in place.
    pub(super) fn kind(&self) -> &str {
        self.operation.strip_suffix("_in_place").unwrap_or(&self.operation)
    }
}

/// Writes the operation with its arguments: `all_reduce of 4 float`, or `ncclAllReduce of 4 float`.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, received, .. } = self;
        f.write_str(&output::in_line(self.function.as_ref().unwrap_or(&self.operation)))?;
        let elements = match (sent, received) {
            (0, count) | (count, 0) => count.to_string(),
            (sent, received) if sent == received => sent.to_string(),
            (sent, received) => format!("{sent} to {received}"),
        };
        if let Some(data_type) = &self.data_type {
            write!(f, " of {elements} {}", output::in_line(data_type))?;
        }
        match (self.kind(), self.peer, self.source) {
            (_, None, _) => Ok(()),
            ("send" | "put_signal" | "signal", Some(peer), _) => write!(f, " to rank {peer}"),
            ("recv" | "wait_signal", Some(peer), _) => write!(f, " from rank {peer}"),
            ("send_recv", Some(peer), Some(source)) => write!(f, " to rank {peer} and from rank {source}"),
            (_, Some(root), _) => write!(f, " with root {root}"),
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&output::in_line(&self.file))?;
        self.line.iter().try_for_each(|line| write!(f, ":{line}"))
    }
}

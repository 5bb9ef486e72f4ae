//! Dumps of PyTorch's flight recorder, one per rank: `nccl_trace_rank_0` and so on, as pickles or JSON.

mod findings;
mod group;
mod pickle;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use itertools::Itertools;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::finding::Finding;
use super::recording::Candidate;
use super::{Report, Summary};
use crate::output;
use group::Group;

/// The records of a rank.
#[derive(Debug, Deserialize)]
struct Dump {
    version: String,
    pg_config: BTreeMap<String, Configuration>,
    /// The status of each group, by its number in this process. PyTorch 2.4 and newer.
    #[serde(default)]
    pg_status: BTreeMap<u64, Status>,
    /// Absent in the JSON of an empty recorder.
    #[serde(default)]
    entries: Vec<Entry>,
}

/// A process group.
#[derive(Debug, Deserialize)]
struct Configuration {
    name: String,
    desc: String,
    /// The ranks in Python's list syntax: `[0, 1]`.
    ranks: String,
}

/// The numbers of a group's last calls; -1 if there are none.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Status {
    last_enqueued_collective: i64,
    last_completed_collective: i64,
}

#[derive(Debug, Deserialize)]
struct Entry {
    pg_id: u64,
    /// Name and description.
    process_group: (String, String),
    collective_seq_id: u64,
    is_p2p: bool,
    profiling_name: String,
    time_created_ns: u64,
    input_sizes: Vec<Vec<u64>>,
    input_dtypes: Vec<String>,
    output_sizes: Vec<Vec<u64>>,
    state: EntryState,
    retired: bool,
    #[serde(default)]
    frames: Vec<Frame>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EntryState {
    Scheduled,
    Started,
    Completed,
}

#[derive(Debug, Deserialize)]
struct Frame {
    filename: String,
    line: i64,
}

impl Entry {
    fn is_open(&self) -> bool {
        self.state != EntryState::Completed && !self.retired
    }
}

/// Writes the call: `nccl:all_reduce of 4096x5120 BFloat16`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&output::in_line(&self.profiling_name))?;
        let Some(shape) = self.input_sizes.first().or(self.output_sizes.first()) else { return Ok(()) };
        let shape = if shape.is_empty() { "1".into() } else { shape.iter().join("x") };
        let data_type = self.input_dtypes.first().map_or_else(String::new, |name| format!(" {name}"));
        write!(f, " of {shape}{}", output::in_line(&data_type))
    }
}

#[derive(Debug, Default)]
pub(super) struct Dumps {
    ranks: BTreeMap<usize, (PathBuf, Dump)>,
    left_out: Vec<String>,
}

/// Reads the dumps, if there are any among the files. Any other file is an error if the user named it, and is left out otherwise.
pub(super) fn read(files: &[Candidate]) -> Result<Option<Dumps>> {
    if !files.iter().any(|file| file.bytes.as_ref().is_ok_and(|bytes| is_dump(bytes))) {
        return Ok(None);
    }
    let mut dumps = Dumps::default();
    for Candidate { path, is_named, bytes } in files {
        let added = match bytes {
            Ok(bytes) => dumps.add(path, bytes).with_context(|| path.display().to_string()),
            Err(error) => Err(anyhow!("{error:#}")),
        };
        match added {
            Err(error) if *is_named => return Err(error),
            Err(error) => dumps.left_out.push(format!("{error:#}")),
            Ok(()) => {}
        }
    }
    ensure!(!dumps.ranks.is_empty(), "{}", dumps.left_out.join("\n"));
    Ok(Some(dumps))
}

/// Returns the number at the end of a file's name, ignoring the extension `.json`.
pub(super) fn rank_of(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".json").unwrap_or(name);
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[name.len() - digits..].parse().ok()
}

fn is_dump(bytes: &[u8]) -> bool {
    let has_groups = |entries: HashMap<String, IgnoredAny>| entries.contains_key("pg_config");
    pickle::is_pickle(bytes) || serde_json::from_slice(bytes).is_ok_and(has_groups)
}

impl Dumps {
    fn add(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        let parse = || match pickle::is_pickle(bytes) {
            true => Ok(Dump::deserialize(pickle::read(bytes)?)?),
            false => Ok(serde_json::from_slice(bytes)?),
        };
        let dump: Dump =
            parse().map_err(|error: Error| error.context("not a dump of PyTorch's flight recorder"))?;
        let version = &dump.version;
        ensure!(version.starts_with("2."), "a dump of version {version}: expected 2");
        let rank = rank_of(path).context("the name does not end in the rank, as in nccl_trace_rank_0")?;
        if let Some((other, _)) = self.ranks.get(&rank) {
            bail!("a second dump of rank {rank}; the first is {}", other.display());
        }
        self.ranks.insert(rank, (path.to_owned(), dump));
        Ok(())
    }
}

/// Prints where the ranks diverged, as text or JSON. Returns whether there is a group, no finding, and no file that was left out.
pub(super) fn diff(dumps: &Dumps, is_json: bool) -> Result<bool> {
    for problem in &dumps.left_out {
        anstream::eprintln!("warning: left out: {}", output::in_line(problem));
    }
    let groups = group::groups(&dumps.ranks)?;
    let findings = findings::compare(&groups);
    let is_sound = findings.is_empty() && dumps.left_out.is_empty() && !groups.is_empty();
    if is_json {
        let summary = |group: &Group<'_>| Summary {
            id: group.name.to_owned(),
            name: Some(group.to_string()),
            size: group.ranks.len(),
            recorded: group.members.len(),
        };
        let communicators = groups.iter().map(summary).collect();
        output::print_json(&Report { communicators, findings, left_out: dumps.left_out.clone() })?;
    } else {
        print(&groups, dumps.ranks.len(), &findings)?;
    }
    Ok(is_sound)
}

fn print(groups: &[Group<'_>], ranks: usize, findings: &[Finding]) -> Result<()> {
    let mut out = stdout();
    writeln!(out, "PyTorch's flight recorder: dumps of {ranks} ranks, {} groups", groups.len())?;
    for finding in findings {
        write!(out, "group {}: {finding}", finding.communicator)?;
    }
    if groups.is_empty() {
        writeln!(out, "the dumps have no group")?;
    } else if findings.is_empty() {
        let open = groups.iter().flat_map(|group| group.members.values());
        let open: usize = open.map(|member| member.open_collectives().count()).sum();
        writeln!(out, "all ranks agree; calls of collectives that have not completed: {open}")?;
    }
    Ok(())
}

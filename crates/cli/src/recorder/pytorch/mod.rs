//! Dumps of PyTorch's flight recorder, one per rank: `nccl_trace_rank_0` and so on, as pickles or JSON.

mod findings;
mod pickle;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use itertools::Itertools;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::finding::Finding;
use super::recording::Candidate;
use super::{Report, Summary};
use crate::output;

/// The records of a rank.
#[derive(Debug, Deserialize)]
struct Dump {
    version: String,
    pg_config: BTreeMap<String, Configuration>,
    /// The status of each group, by its number in this process. Only in PyTorch 2.4 and newer.
    #[serde(default)]
    pg_status: BTreeMap<u64, Status>,
    /// The entries, which are absent in the JSON of an empty recorder.
    #[serde(default)]
    entries: Vec<Entry>,
}

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
    /// The group's name and description.
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
        let parse = || -> Result<Dump> {
            match pickle::is_pickle(bytes) {
                true => Ok(Dump::deserialize(pickle::read(bytes)?)?),
                false => Ok(serde_json::from_slice(bytes)?),
            }
        };
        let dump = parse().context("not a dump of PyTorch's flight recorder")?;
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
    let groups = groups(&dumps.ranks)?;
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

/// A process group. All dumps have the same description and ranks for it, but its name may differ between processes.
struct Group<'a> {
    name: &'a str,
    description: &'a str,
    ranks: Vec<usize>,
    /// The ranks that have a dump.
    members: BTreeMap<usize, Member<'a>>,
}

/// A rank's records of a group.
#[derive(Debug, Default)]
struct Member<'a> {
    /// The collectives by number. Coalesced ones share a number.
    collectives: BTreeMap<u64, Vec<&'a Entry>>,
    point_to_point: Vec<&'a Entry>,
    /// The status; `None` if it is missing, or if its numbers may count point-to-point operations too.
    status: Option<Status>,
}

fn groups(dumps: &BTreeMap<usize, (PathBuf, Dump)>) -> Result<Vec<Group<'_>>> {
    let mut groups: BTreeMap<_, Group<'_>> = BTreeMap::new();
    for (rank, (path, dump)) in dumps {
        let names = names(dump);
        let mut of_name: HashMap<&str, Member<'_>> = HashMap::new();
        for (number, status) in &dump.pg_status {
            if let Some(name) = names.get(number) {
                of_name.entry(name).or_default().status = Some(*status);
            }
        }
        for entry in &dump.entries {
            let member = of_name.entry(&entry.process_group.0).or_default();
            if entry.is_p2p {
                member.point_to_point.push(entry);
            } else {
                member.collectives.entry(entry.collective_seq_id).or_default().push(entry);
            }
        }
        let mut counts: HashMap<(&str, Vec<usize>), usize> = HashMap::new();
        for (name, configuration) in configurations(dump) {
            let description = configuration.desc.as_str();
            let ranks: Vec<usize> = match configuration.ranks.as_str() {
                "" | "[]" => dumps.keys().copied().collect(),
                ranks => serde_json::from_str(ranks)
                    .with_context(|| format!("{}: ranks {ranks} of group {description}", path.display()))?,
            };
            let (file, listed) = (path.display(), &configuration.ranks);
            ensure!(
                ranks.contains(rank),
                "{file}: rank {rank}, as the file's name says, is not among the ranks {listed} of group {description}"
            );
            let count = counts.entry((description, ranks.clone())).or_default();
            *count += 1;
            // Processes count PyTorch's default names, which are numbers, separately, but create such groups in the same order.
            let identity = name.parse::<u64>().map(|_| *count).map_err(|_| name);
            let group = groups.entry((description, ranks.clone(), identity));
            let group = group.or_insert_with(|| Group { name, description, ranks, members: BTreeMap::new() });
            group.members.insert(*rank, of_name.remove(name).unwrap_or_default());
        }
    }
    let mut groups: Vec<Group<'_>> = groups.into_values().collect();
    for group in groups.iter_mut().filter(|group| !has_status_of_collectives(&group.members)) {
        group.members.values_mut().for_each(|member| member.status = None);
    }
    Ok(groups)
}

/// Returns the configurations in the order in which the process created the groups.
fn configurations(dump: &Dump) -> Vec<(&str, &Configuration)> {
    let all = dump.pg_config.values().map(|own| (own.name.as_str(), own));
    all.sorted_by_key(|(name, _)| (name.parse::<u64>().unwrap_or(u64::MAX), *name)).collect()
}

/// Returns the groups' names by their numbers in this process. Entries contain both. A group without entries is identified by its
/// position, because names and numbers increase together.
fn names(dump: &Dump) -> BTreeMap<u64, &str> {
    let of_entries: BTreeMap<u64, &str> =
        dump.entries.iter().map(|entry| (entry.pg_id, &*entry.process_group.0)).collect();
    let configurations = configurations(dump);
    let are_numbers = configurations.iter().all(|(name, _)| name.parse::<u64>().is_ok());
    if !are_numbers || configurations.len() != dump.pg_status.len() {
        return of_entries;
    }
    let in_order: BTreeMap<u64, &str> =
        dump.pg_status.keys().copied().zip(configurations.into_iter().map(|(name, _)| name)).collect();
    let agrees = of_entries.iter().all(|(number, name)| in_order.get(number) == Some(name));
    if agrees { in_order } else { of_entries }
}

/// Returns whether each rank's status counts only collectives: its last number is the number of the rank's last collective.
fn has_status_of_collectives(members: &BTreeMap<usize, Member<'_>>) -> bool {
    let last = |member: &Member<'_>| Some((*member.collectives.last_key_value()?.0, member.status?));
    let agrees = |(last, status): (u64, Status)| i64::try_from(last) == Ok(status.last_enqueued_collective);
    let mut agree = members.values().filter_map(last).map(agrees).peekable();
    members.values().all(|member| member.point_to_point.is_empty())
        && agree.peek().is_some()
        && agree.all(|agrees| agrees)
}

impl Group<'_> {
    /// Returns the number of the last collective that a rank has called, if the dump contains it.
    fn last_called(&self, rank: usize) -> Option<u64> {
        let member = self.members.get(&rank)?;
        let recorded = member.collectives.last_key_value().map(|(number, _)| *number);
        recorded.or_else(|| u64::try_from(member.status?.last_enqueued_collective.max(0)).ok())
    }

    /// Returns the number of the last collective that a rank has completed, if the dump contains it.
    fn last_completed(&self, rank: usize) -> Option<u64> {
        u64::try_from(self.members.get(&rank)?.status?.last_completed_collective.max(0)).ok()
    }
}

impl<'a> Member<'a> {
    /// Returns the collectives that have not completed, by number.
    fn open_collectives(&self) -> impl DoubleEndedIterator<Item = (u64, &'a Entry)> {
        let first = |(number, entries): (&u64, &Vec<&'a Entry>)| Some((*number, *entries.first()?));
        self.collectives.iter().filter_map(first).filter(|(_, entry)| entry.is_open())
    }

    /// Returns the number of incomplete sends or receives with this name: `send 0->1` or `recv 0<-1`, with ranks of the group.
    fn open_point_to_point(&self, name: &str) -> usize {
        let is_named = |entry: &&&Entry| entry.profiling_name.trim_start_matches("nccl:") == name;
        self.point_to_point.iter().filter(|entry| entry.is_open()).filter(is_named).count()
    }
}

/// A send or receive that waits for a peer that is not in the matching call.
struct Unmatched<'a> {
    rank: usize,
    peer: usize,
    entry: &'a Entry,
}

impl<'a> Group<'a> {
    /// Returns the incomplete sends and receives for which the peer's dump has fewer matching calls.
    fn unmatched(&self) -> Vec<Unmatched<'a>> {
        let mut unmatched = Vec::new();
        for (own, rank) in self.ranks.iter().enumerate() {
            let Some(member) = self.members.get(rank) else { continue };
            let mut seen = BTreeMap::new();
            for entry in member.point_to_point.iter().filter(|entry| entry.is_open()) {
                let name = entry.profiling_name.trim_start_matches("nccl:");
                let Some((_, end)) = name.split_once("->").or(name.split_once("<-")) else { continue };
                let Ok(end) = end.parse::<usize>() else { continue };
                let counterpart = match name.starts_with("send") {
                    true => format!("recv {end}<-{own}"),
                    false => format!("send {end}->{own}"),
                };
                let count = seen.entry(name).or_insert(0);
                *count += 1;
                let Some(peer) = self.ranks.get(end).copied() else { continue };
                let other = self.members.get(&peer);
                if other.is_some_and(|other| other.open_point_to_point(&counterpart) < *count) {
                    unmatched.push(Unmatched { rank: *rank, peer, entry });
                }
            }
        }
        unmatched
    }
}

/// Writes the description and the name: `EXPERT_MODEL_PARALLEL_GROUP (72)`.
impl fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", output::in_line(self.description), output::in_line(self.name))
    }
}

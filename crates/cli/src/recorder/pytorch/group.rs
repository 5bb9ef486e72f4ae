//! The groups of a job, with the records of their ranks.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use itertools::Itertools;

use super::{Dump, Entry, Status};
use crate::output;

/// A process group. All dumps have the same description and ranks for it, but its name may differ between processes.
pub(super) struct Group<'a> {
    pub(super) name: &'a str,
    description: &'a str,
    pub(super) ranks: Vec<usize>,
    /// The ranks that have a dump.
    pub(super) members: BTreeMap<usize, Member<'a>>,
}

/// A rank's records of a group.
#[derive(Debug, Default)]
pub(super) struct Member<'a> {
    /// The collectives by number. Coalesced ones share a number.
    pub(super) collectives: BTreeMap<u64, Vec<&'a Entry>>,
    point_to_point: Vec<&'a Entry>,
    /// The status; `None` if it is missing, or if its numbers may count point-to-point operations too.
    status: Option<Status>,
}

pub(super) fn groups(dumps: &BTreeMap<usize, (PathBuf, Dump)>) -> Result<Vec<Group<'_>>> {
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
fn configurations(dump: &Dump) -> Vec<(&str, &super::Configuration)> {
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

/// Returns whether each rank's status counts only collectives: its last number is that of the rank's last collective.
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
    pub(super) fn last_called(&self, rank: usize) -> Option<u64> {
        let member = self.members.get(&rank)?;
        let recorded = member.collectives.last_key_value().map(|(number, _)| *number);
        recorded.or_else(|| u64::try_from(member.status?.last_enqueued_collective.max(0)).ok())
    }

    /// Returns the number of the last collective that a rank has completed, if the dump contains it.
    pub(super) fn last_completed(&self, rank: usize) -> Option<u64> {
        u64::try_from(self.members.get(&rank)?.status?.last_completed_collective.max(0)).ok()
    }
}

impl<'a> Member<'a> {
    /// Returns the collectives that have not completed, by number.
    pub(super) fn open_collectives(&self) -> impl DoubleEndedIterator<Item = (u64, &'a Entry)> {
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
pub(super) struct Unmatched<'a> {
    pub(super) rank: usize,
    pub(super) peer: usize,
    pub(super) entry: &'a Entry,
}

impl<'a> Group<'a> {
    /// Returns the sends and receives whose peer has a dump with fewer matching calls.
    pub(super) fn unmatched(&self) -> Vec<Unmatched<'a>> {
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

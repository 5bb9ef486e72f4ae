//! Finds the ranks that hold up a job: others wait for these ranks, which wait for no other rank.
//!
//! PyTorch queues operations without waiting for them. Therefore a rank with open calls is not suspicious, nor is a rank that is
//! behind on one group because it waits on another.

use std::collections::{BTreeMap, BTreeSet};

use itertools::Itertools;

use super::{Entry, Group, Unmatched};
use crate::output;
use crate::recorder::finding::{Call, Finding, Kind, name_ranks, ranks_have, usual};
use crate::recorder::recording::State;

/// A finding, and the time of its call.
type Timed = (u64, Finding);

pub(super) fn compare(groups: &[Group<'_>]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = groups.iter().filter_map(different_calls).collect();
    findings.extend(missing_dumps(groups));
    let waits = Waits::new(groups);
    findings.extend(earliest(groups.iter().flat_map(|group| missing_calls(group, &waits))));
    findings.extend(waits.circular(groups));
    findings.extend(earliest(groups.iter().filter_map(not_completed)));
    if findings.is_empty() {
        findings.extend(unmatched(groups, &waits));
    }
    findings
}

/// Merges findings of one kind with the same ranks: keeps the finding on the first call, and adds the number of the others.
fn earliest(findings: impl Iterator<Item = Timed>) -> Vec<Finding> {
    let mut kept: Vec<(Finding, usize)> = Vec::new();
    for (_, finding) in findings.sorted_by_key(|(time, _)| *time) {
        match kept.iter_mut().find(|(first, _)| first.ranks == finding.ranks) {
            Some((_, others)) => *others += 1,
            None => kept.push((finding, 0)),
        }
    }
    let finding = |(mut finding, others): (Finding, usize)| {
        match others {
            0 => {}
            1 => finding.problem += "; the same on another group",
            _ => finding.problem += &format!("; the same on {others} other groups"),
        }
        finding
    };
    kept.into_iter().map(finding).collect()
}

impl From<(usize, &Entry)> for Call {
    fn from((rank, entry): (usize, &Entry)) -> Self {
        // Skips the frames of PyTorch itself.
        let frame = entry.frames.iter().find(|frame| !frame.filename.contains("/torch/"));
        let site = frame.map(|frame| format!("{}:{}", output::in_line(&frame.filename), frame.line));
        let state = if entry.is_open() { State::Called } else { State::Completed };
        Self { rank, call: entry.to_string(), site, state }
    }
}

/// Returns the first collective of a group whose calls differ between ranks.
fn different_calls(group: &Group<'_>) -> Option<Finding> {
    let calls = group.members.iter().flat_map(|(rank, member)| {
        // Coalesced operations share one number.
        let single = member.collectives.iter().filter(|(_, entries)| entries.len() == 1);
        single.map(|(number, entries)| (*number, (*rank, entries[0])))
    });
    calls.into_group_map().into_iter().sorted_by_key(|(number, _)| *number).find_map(|(number, calls)| {
        let usual = usual(calls.iter().map(|(_, call)| *call), identity)?;
        let differing =
            calls.iter().filter_map(|(rank, call)| Some((*rank, *call, difference(call, usual)?)));
        let differing: Vec<_> = differing.collect();
        let (_, own, (kind, what)) = *differing.first()?;
        let ranks: Vec<usize> = differing.iter().map(|(rank, ..)| *rank).collect();
        let names = name_ranks(&ranks);
        let problem = format!("{names} called {own} as collective {number}, and the others {what}{usual}");
        Some(Finding { collective: Some(number), ..Finding::new(group, kind, ranks, problem, calls) })
    })
}

/// Returns the properties that all ranks' calls of one collective share: operation, types, and number of elements.
fn identity(entry: &Entry) -> (&str, &[String], Option<u64>) {
    // In other operations, ranks may have different shares.
    let has_equal_sizes = matches!(
        entry.profiling_name.trim_start_matches("nccl:"),
        "all_reduce" | "broadcast" | "reduce" | "_all_gather_base" | "_reduce_scatter_base"
    );
    let elements = || entry.input_sizes.iter().map(|shape| shape.iter().product::<u64>()).sum();
    (&entry.profiling_name, &entry.input_dtypes, has_equal_sizes.then(elements))
}

/// Returns the property in which calls with the same number differ.
fn difference(one: &Entry, other: &Entry) -> Option<(Kind, &'static str)> {
    let ((operation, types, elements), other) = (identity(one), identity(other));
    let differences = [
        (operation != other.0, (Kind::OtherOperation, "")),
        (types != other.1, (Kind::OtherType, "with another type: ")),
        (elements != other.2, (Kind::OtherSize, "with another size: ")),
    ];
    differences.into_iter().find_map(|(differs, difference)| differs.then_some(difference))
}

fn missing_dumps(groups: &[Group<'_>]) -> Option<Finding> {
    let missing = |group: &&Group<'_>| group.ranks.len() - group.members.len();
    let group = groups.iter().max_by_key(|group| (missing(group), group.ranks.len()));
    let group = group.filter(|group| missing(group) > 0)?;
    let ranks = group.ranks.iter().copied().filter(|rank| !group.members.contains_key(rank));
    let (count, size) = (missing(&group), group.ranks.len());
    Some(Finding::missing(group, "dump", ranks, count, size, Vec::<Call>::new()))
}

/// The ranks that each rank waits for.
struct Waits {
    of_rank: BTreeMap<usize, BTreeSet<usize>>,
    /// The ranks that have not called a collective in which others wait.
    behind: BTreeSet<usize>,
}

impl Waits {
    fn new(groups: &[Group<'_>]) -> Self {
        let mut waits = Self { of_rank: BTreeMap::new(), behind: BTreeSet::new() };
        for group in groups {
            for (rank, member) in &group.members {
                let Some((last, _)) = member.open_collectives().next_back() else { continue };
                for other in group.ranks.iter().filter(|other| *other != rank) {
                    let is_behind = group.last_called(*other).is_some_and(|called| called < last);
                    // It may wait for a rank without a dump.
                    if is_behind || !group.members.contains_key(other) {
                        waits.of_rank.entry(*rank).or_default().insert(*other);
                    }
                    if is_behind {
                        waits.behind.insert(*other);
                    }
                }
            }
            for unmatched in group.unmatched() {
                waits.of_rank.entry(unmatched.rank).or_default().insert(unmatched.peer);
            }
        }
        waits
    }

    fn waits(&self, rank: usize) -> bool {
        self.of_rank.contains_key(&rank)
    }

    fn waiting_for(&self, awaited: usize) -> Vec<usize> {
        self.of_rank.iter().filter(|(_, all)| all.contains(&awaited)).map(|(rank, _)| *rank).collect()
    }

    /// Returns the ranks that wait for each other. Ranks that only wait for one of these are not named.
    fn circular(&self, groups: &[Group<'_>]) -> Option<Finding> {
        // Those that wait, in the end, for a rank that waits for nobody, or for ranks that were found before.
        let ends = self.of_rank.values().flatten().filter(|rank| !self.waits(**rank));
        let mut explained: BTreeSet<usize> =
            ends.flat_map(|rank| reach(*rank, |rank| self.waiting_for(rank))).collect();
        let mut ranks: Vec<usize> = vec![];
        for behind in &self.behind {
            let mut start = *behind;
            while !explained.contains(&start) {
                let awaited =
                    reach(start, |rank| self.of_rank.get(&rank).into_iter().flatten().copied().collect());
                let waiting = reach(start, |rank| self.waiting_for(rank));
                match awaited.difference(&waiting).next() {
                    Some(next) => start = *next,
                    None => {
                        ranks.extend(awaited);
                        explained.extend(waiting);
                    }
                }
            }
        }
        ranks.sort_unstable();
        let (names, advice) = (name_ranks(&ranks), "all ranks have to use their groups in the same order");
        let problem = format!("{names} wait for each other: {advice}");
        let call = |group: &Group<'_>, rank: &usize| {
            let (number, entry) = group.members.get(rank)?.open_collectives().next()?;
            let mut call = Call::from((*rank, entry));
            call.call += &format!(", collective {number} on {group}");
            Some(call)
        };
        let of_group = |group| ranks.iter().filter_map(move |rank| call(group, rank));
        let first = groups.iter().find(|group| of_group(group).next().is_some())?;
        let calls: Vec<Call> = groups.iter().flat_map(of_group).collect();
        Some(Finding::new(first, Kind::CircularWait, ranks, problem, calls))
    }
}

/// Returns a rank and all ranks that can be reached from it.
fn reach(rank: usize, next: impl Fn(usize) -> Vec<usize>) -> BTreeSet<usize> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![rank]);
    while let Some(rank) = left.pop() {
        if reached.insert(rank) {
            left.extend(next(rank));
        }
    }
    reached
}

/// Finds, for each rank that waits for no other rank, the first collective of a group in which others wait for it.
fn missing_calls(group: &Group<'_>, waits: &Waits) -> Vec<Timed> {
    let open = group.members.iter().flat_map(|(rank, member)| {
        member.open_collectives().map(move |(number, entry)| (number, (*rank, entry)))
    });
    let callers: BTreeMap<u64, Vec<(usize, &Entry)>> = open.into_group_map().into_iter().collect();
    let ranks = group.members.keys().filter(|rank| waits.behind.contains(rank) && !waits.waits(**rank));
    let missing = ranks.filter_map(|rank| {
        let (number, _) = callers.range(group.last_called(*rank)? + 1..).next()?;
        Some((*number, *rank))
    });
    let finding = |(number, ranks): (u64, Vec<usize>)| {
        let callers = &callers[&number];
        let (_, entry) = callers[0];
        let waiting: Vec<usize> = callers.iter().map(|(rank, _)| *rank).collect();
        let wait = if waiting.len() == 1 { "waits" } else { "wait" };
        let (names, waiting) = (ranks_have(&ranks), name_ranks(&waiting));
        let problem = format!("{names} not called collective {number}, {entry}, in which {waiting} {wait}");
        let finding = Finding::new(group, Kind::MissingCall, ranks, problem, callers.iter().copied());
        (entry.time_created_ns, Finding { collective: Some(number), ..finding })
    };
    missing.into_group_map().into_iter().sorted().map(finding).collect()
}

/// Returns the first collective that some callers have completed and others have not, although all have contributed.
fn not_completed(group: &Group<'_>) -> Option<Timed> {
    let needs_all = |entry: &Entry| {
        let names = ["all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter"];
        names.iter().any(|name| entry.profiling_name.contains(name))
    };
    let furthest = group.members.keys().filter_map(|rank| group.last_completed(*rank)).max()?;
    let open = group.members.values().flat_map(|member| member.open_collectives().next());
    let (number, entry) = open
        .filter(|(number, entry)| *number <= furthest && needs_all(entry))
        .min_by_key(|(number, _)| *number)?;
    let calls = group.members.iter();
    let calls = calls.filter_map(|(rank, member)| Some((*rank, *member.collectives.get(&number)?.first()?)));
    let calls = calls.filter(|(_, entry)| entry.is_open()).collect_vec();
    let completed = group.members.keys().copied().filter(|rank| group.last_completed(*rank) >= Some(number));
    let ranks: Vec<usize> = calls.iter().map(|(rank, _)| *rank).collect();
    let (names, others) = (ranks_have(&ranks), ranks_have(&completed.collect_vec()));
    let problem = format!("{names} not completed collective {number}, {entry}, which {others}");
    let finding = Finding::new(group, Kind::NotCompleted, ranks, problem, calls);
    Some((entry.time_created_ns, Finding { collective: Some(number), ..finding }))
}

/// Finds sends and receives without a matching call: those whose peer waits for no other rank or, if there are none, all.
fn unmatched(groups: &[Group<'_>], waits: &Waits) -> Vec<Finding> {
    let unmatched =
        || groups.iter().flat_map(|group| group.unmatched().into_iter().map(move |one| (group, one)));
    let is_end = |peer: usize| !waits.waits(peer);
    let has_end = unmatched().any(|(_, one)| is_end(one.peer));
    let named = unmatched().filter(|(_, one)| !has_end || is_end(one.peer));
    let finding = |(group, Unmatched { rank, peer, entry }): (&Group<'_>, Unmatched<'_>)| {
        let problem = format!("rank {rank} waits in {entry} for rank {peer}, which has no counterpart of it");
        let finding = Finding::new(group, Kind::UnmatchedMessage, vec![peer], problem, [(rank, entry)]);
        (entry.time_created_ns, finding)
    };
    earliest(named.map(finding))
}

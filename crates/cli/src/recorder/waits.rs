//! Ranks that wait for each other, in different calls or on different communicators.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr;

use itertools::Itertools;

use super::finding::{Call, Finding, Kind, name_ranks};
use super::point_to_point::PointToPoint;
use super::recording::{Job, Process, Rank, Record};

/// A sequential caller: a process, or one of its ranks if it has several on a communicator.
type Caller<'a> = (&'a Process, Option<usize>);

/// A call that has not returned.
struct Wait<'a> {
    job: &'a Job,
    rank: usize,
    record: &'a Record,
}

impl<'a> Wait<'a> {
    /// Returns the identity of the call, which is equal for all ranks in the same call.
    fn call(&self) -> (&'a str, Option<u64>, &'a str) {
        (self.job.id.as_str(), self.record.collective, self.record.kind())
    }
}

/// Returns the finding for callers that wait for each other and are not all in one call, if there are any.
pub(super) fn circular(jobs: &[Job]) -> Option<Finding> {
    let several: BTreeSet<&Process> =
        jobs.iter().flat_map(|job| job.ranks.values().map(|rank| &*rank.process).duplicates()).collect();
    let mut waits: BTreeMap<Caller<'_>, Wait<'_>> = BTreeMap::new();
    for job in jobs {
        for (rank, recorded) in &job.ranks {
            if let Some(record) = recorded.open_call() {
                waits.entry(caller(&several, *rank, recorded)).or_insert(Wait { job, rank: *rank, record });
            }
        }
    }
    let callers: BTreeMap<Caller<'_>, usize> = waits.keys().copied().zip(0..).collect();
    let waits: Vec<Wait<'_>> = waits.into_values().collect();
    let index = |rank: usize, recorded: &Rank| callers.get(&caller(&several, rank, recorded)).copied();
    let mut awaited = vec![vec![]; waits.len()];
    for job in jobs {
        add_awaited(&mut awaited, job, &waits, index);
    }
    // Callers that wait only for callers outside of calls are not part of a cycle.
    let leads = lead_to_circle(&awaited);
    let waits: Vec<_> = waits.iter().zip(leads).filter(|(_, leads)| *leads).map(|(wait, _)| wait).collect();
    let calls = waits.iter().map(|wait| wait.call()).counts();
    let rarest = calls.values().min()?;
    let (mut blamed, others): (Vec<&Wait<'_>>, Vec<&Wait<'_>>) =
        waits.iter().copied().partition(|wait| calls.get(&wait.call()) == Some(rarest));
    // A group starts all its operations together; other calls are ordered.
    if others.is_empty() && blamed.iter().any(|wait| wait.record.group.is_some()) {
        blamed.retain(|wait| wait.record.group.is_none());
    }
    let first = blamed.first().or(others.first())?;
    let ranks = blamed.iter().map(|wait| wait.rank).sorted().dedup().collect_vec();
    let are_on_several = !waits.iter().map(|wait| &wait.job.id).all_equal();
    let advice = if are_on_several {
        "all ranks have to use their communicators in the same order"
    } else {
        "all ranks have to call them in the same order, or in one group"
    };
    let names = match calls.len() {
        1 => format!(", {}", name_ranks(&ranks)),
        calls => format!(" in {calls} different calls, {} in the rarest", name_ranks(&ranks)),
    };
    let (count, size) = (waits.len(), first.job.size);
    let problem = format!("{count} of {size} ranks wait for each other{names}: {advice}");
    let calls = waits.iter().map(|wait| {
        let mut call = Call::from((wait.rank, wait.record));
        if are_on_several {
            call.call += &format!(" on {}", wait.job);
        }
        call
    });
    Some(Finding::new(&first.job.id, Kind::CircularWait, ranks, problem, calls))
}

fn caller<'a>(several: &BTreeSet<&Process>, rank: usize, recorded: &'a Rank) -> Caller<'a> {
    let process = &*recorded.process;
    (process, several.contains(process).then_some(rank))
}

/// Adds the indices of the waits that each of the `waits` on a communicator depends on: the ranks that have not made the matching
/// call.
///
/// Direct edges would be quadratic in the number of ranks. Therefore all ranks whose last collective has the same number are behind
/// an additional node, appended at the end, which also leads to the node of the next lower number. A collective waits for one node.
fn add_awaited(
    awaited: &mut Vec<Vec<usize>>,
    job: &Job,
    waits: &[Wait<'_>],
    index: impl Fn(usize, &Rank) -> Option<usize>,
) {
    let ranks = job.ranks.iter();
    let waiting = ranks.filter_map(|(rank, recorded)| Some((*rank, recorded, index(*rank, recorded)?)));
    let waiting: Vec<_> = waiting.collect();
    if waiting.is_empty() {
        return;
    }
    let by_last =
        waiting.iter().map(|(_, recorded, wait)| (recorded.last_collective(), *wait)).into_group_map();
    let mut nodes: BTreeMap<u64, usize> = BTreeMap::new();
    for (last, mut next) in by_last.into_iter().sorted() {
        next.extend(nodes.last_key_value().map(|(_, below)| *below));
        nodes.insert(last, awaited.len());
        awaited.push(next);
    }
    let point_to_point = PointToPoint::of(job);
    for (rank, recorded, wait) in waiting {
        let Some(record) = recorded.open_call() else { continue };
        if !ptr::eq(record, waits[wait].record) {
            // The caller is in a call on another communicator.
            continue;
        }
        let next = &mut awaited[wait];
        match record.collective {
            Some(number) => next.extend(nodes.range(..number).next_back().map(|(_, node)| *node)),
            None => {
                let others = point_to_point.awaited(rank, record).filter(|other| *other != rank);
                next.extend(others.filter_map(|other| index(other, job.ranks.get(&other)?)));
            }
        }
    }
}

/// Returns, for each node of a graph, whether a cycle is reachable from it.
fn lead_to_circle(next: &[Vec<usize>]) -> Vec<bool> {
    let mut before = vec![vec![]; next.len()];
    for (node, next) in next.iter().enumerate() {
        next.iter().for_each(|other| before[*other].push(node));
    }
    let mut left: Vec<usize> = next.iter().map(Vec::len).collect();
    // Removes nodes without successors until only nodes that lead to a cycle remain.
    let mut ends: Vec<usize> = (0..next.len()).filter(|node| left[*node] == 0).collect();
    while let Some(end) = ends.pop() {
        for node in &before[end] {
            left[*node] -= 1;
            if left[*node] == 0 {
                ends.push(*node);
            }
        }
    }
    left.into_iter().map(|left| left > 0).collect()
}

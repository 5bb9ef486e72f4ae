//! Ranks that wait for each other, in different calls or on different communicators.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{Finding, Kind, name_ranks};
use super::messages::awaited;
use super::recording::{Job, Process, Record};

/// The maker of calls, one after another: a process, or one of its ranks if it has several on a communicator.
type Caller = (Process, Option<usize>);

/// A call that has not returned, and those for which it waits.
struct Wait<'a> {
    job: &'a Job,
    rank: usize,
    record: &'a Record,
    awaited: BTreeSet<Caller>,
}

/// Returns the finding for the callers that wait for each other, if there are any, and if they are not all in one call.
pub(super) fn circular(jobs: &[Job]) -> Option<Finding> {
    let mut waits: BTreeMap<Caller, Wait<'_>> = BTreeMap::new();
    for job in jobs {
        for (rank, recorded) in &job.ranks {
            let Some(record) = recorded.open_call() else { continue };
            let awaited = awaited(job, *rank, record).into_iter().filter_map(|rank| caller(jobs, job, rank));
            let wait = Wait { job, rank: *rank, record, awaited: awaited.collect() };
            if let Some(caller) = caller(jobs, job, *rank) {
                waits.entry(caller).or_insert(wait);
            }
        }
    }
    // Those that wait only for callers that are in no call are not part of a circle.
    loop {
        let callers: BTreeSet<Caller> = waits.keys().cloned().collect();
        waits.retain(|_, wait| !wait.awaited.is_disjoint(&callers));
        if waits.len() == callers.len() {
            break;
        }
    }
    let mut calls: BTreeMap<(&str, Option<u64>, &str), Vec<&Wait<'_>>> = BTreeMap::new();
    for wait in waits.values() {
        let key = (wait.job.id.as_str(), wait.record.collective, wait.record.kind());
        calls.entry(key).or_default().push(wait);
    }
    let rarest = calls.values().map(Vec::len).min()?;
    let (mut blamed, others): (Vec<_>, Vec<_>) = waits.values().partition(|wait| {
        calls
            .values()
            .any(|same| same.len() == rarest && same.iter().any(|other| std::ptr::eq(*other, *wait)))
    });
    // A group starts all its operations; calls on their own have an order.
    if others.is_empty() && blamed.iter().any(|wait| wait.record.group.is_some()) {
        blamed.retain(|wait| wait.record.group.is_none());
    }
    let first = blamed.first().or(others.first())?;
    let ranks: BTreeSet<usize> = blamed.iter().map(|wait| wait.rank).collect();
    let ranks: Vec<usize> = ranks.into_iter().collect();
    let communicators: BTreeSet<&str> = waits.values().map(|wait| wait.job.id.as_str()).collect();
    let advice = if communicators.len() > 1 {
        "all ranks have to use their communicators in the same order"
    } else {
        "all ranks have to call them in the same order, or in one group"
    };
    let problem = format!(
        "{} of {} ranks wait for each other in {} different calls, {} in the rarest: {advice}",
        waits.len(),
        first.job.size,
        calls.len(),
        name_ranks(&ranks),
    );
    let mut finding = Finding::new(first.job, Kind::CircularWait, ranks, problem);
    finding = finding.with_calls(waits.values().map(|wait| (wait.rank, wait.record)));
    for (call, wait) in finding.calls.iter_mut().zip(waits.values()) {
        if communicators.len() > 1 {
            call.call += &format!(" on {}", wait.job);
        }
    }
    Some(finding)
}

/// Returns the caller of a rank, `None` if there is no recording of it.
fn caller(jobs: &[Job], job: &Job, rank: usize) -> Option<Caller> {
    let process = &job.ranks.get(&rank)?.process;
    let of_process = |job: &Job| job.ranks.values().filter(|other| other.process == *process).count();
    let is_one_of_several = jobs.iter().any(|job| of_process(job) > 1);
    Some((process.clone(), is_one_of_several.then_some(rank)))
}

//! Collectives: all ranks of a communicator call the same ones in the same order.

use std::collections::BTreeMap;

use super::finding::{Agreement, Finding, Kind, name_ranks};
use super::recording::{Job, Rank, Record};

/// Returns the first collective of a communicator that its ranks did not call alike.
pub(super) fn divergence(job: &Job) -> Option<Finding> {
    // Collectives that a ring has lost are taken for equal: what follows would not have its number otherwise.
    let first = job.ranks.values().map(Rank::first_collective).max()?;
    let last = job.ranks.values().map(Rank::last_collective).max()?;
    let mut agreement = None;
    for number in first..=last {
        let calls: BTreeMap<usize, &Record> = job
            .ranks
            .iter()
            .filter_map(|(rank, recorded)| Some((*rank, recorded.collective(number)?)))
            .collect();
        let missing: Vec<usize> =
            job.ranks.keys().copied().filter(|rank| !calls.contains_key(rank)).collect();
        let usual = usual(&calls)?;
        let others: Vec<usize> =
            calls.iter().filter(|(_, call)| !is_same(call, usual)).map(|(rank, _)| *rank).collect();
        let mut finding = if others.is_empty() && missing.is_empty() {
            agreement = Some(Agreement { collective: number, call: usual.to_string() });
            continue;
        } else if others.is_empty() {
            count_differs(job, number, usual, &calls, missing)
        } else {
            call_differs(job, number, usual, &calls, others)
        };
        finding.collective = Some(number);
        finding.last_agreement = agreement;
        return Some(finding);
    }
    None
}

/// Returns the call that most ranks have made; of equally many, that of the lowest rank.
fn usual<'a>(calls: &BTreeMap<usize, &'a Record>) -> Option<&'a Record> {
    let votes = |call: &Record| calls.values().filter(|other| is_same(other, call)).count();
    calls.values().rev().max_by_key(|call| votes(call)).copied()
}

/// Returns `true` if the calls are those of one collective.
fn is_same(one: &Record, other: &Record) -> bool {
    difference(one, other).is_none()
}

/// Returns the first argument in which two calls differ.
fn difference(one: &Record, other: &Record) -> Option<Kind> {
    // With a count for each rank, the ranks' own numbers differ.
    let is_vector = one.kind().ends_with("_v");
    if one.kind() != other.kind() {
        Some(Kind::OtherOperation)
    } else if one.data_type != other.data_type {
        Some(Kind::OtherType)
    } else if one.peer != other.peer {
        Some(Kind::OtherRoot)
    } else if !is_vector && (one.sent, one.received) != (other.sent, other.received) {
        Some(Kind::OtherSize)
    } else {
        None
    }
}

/// Some ranks have called a collective, and the others have not.
fn count_differs(
    job: &Job,
    number: u64,
    usual: &Record,
    calls: &BTreeMap<usize, &Record>,
    missing: Vec<usize>,
) -> Finding {
    let called: Vec<usize> = calls.keys().copied().collect();
    let (kind, ranks, problem) = if called.len() < missing.len() {
        let problem = format!(
            "{} called {usual} as collective {number}, which the other {} have not called",
            name_ranks(&called),
            missing.len()
        );
        (Kind::ExtraCall, called, problem)
    } else {
        let verb = if missing.len() == 1 { "has" } else { "have" };
        let problem = format!("{} {verb} not called collective {number}, {usual}", name_ranks(&missing));
        (Kind::MissingCall, missing, problem)
    };
    // Those that did not come are in another call, perhaps.
    let elsewhere = job.ranks.iter().filter(|(rank, _)| !calls.contains_key(rank));
    let elsewhere = elsewhere.filter_map(|(rank, recorded)| Some((*rank, recorded.open_call()?)));
    let mut all: Vec<_> = calls.iter().map(|(rank, call)| (*rank, *call)).chain(elsewhere).collect();
    all.sort_by_key(|(rank, _)| *rank);
    Finding::new(job, kind, ranks, problem).with_calls(all)
}

/// All that have called a collective of this number have not called the same.
fn call_differs(
    job: &Job,
    number: u64,
    usual: &Record,
    calls: &BTreeMap<usize, &Record>,
    others: Vec<usize>,
) -> Finding {
    let next = |rank: usize| job.ranks.get(&rank).and_then(|recorded| recorded.collective(number + 1));
    let agreeing = calls.keys().copied().filter(|rank| !others.contains(rank));
    let usual_next = agreeing.filter_map(next).next();
    let is = |one: Option<&Record>, other: Option<&Record>| {
        one.zip(other).is_some_and(|(one, other)| is_same(one, other))
    };
    let rank = others[0];
    let (own, own_next) = (calls[&rank], next(rank));
    let names = name_ranks(&others);
    let (kind, problem) = match difference(own, usual) {
        _ if is(Some(own), usual_next) && is(own_next, Some(usual)) => {
            (Kind::OtherOrder, format!("{names} called {own} before {usual}, and the others after it"))
        }
        _ if is(own_next, Some(usual)) => (
            Kind::ExtraCall,
            format!("{names} called {own} as collective {number}, one more than the others"),
        ),
        _ if is(Some(own), usual_next) => {
            (Kind::MissingCall, format!("{names} left out collective {number}, {usual}"))
        }
        Some(Kind::OtherType) => (
            Kind::OtherType,
            format!("{names} called {own} as collective {number}, and the others with another type: {usual}"),
        ),
        Some(Kind::OtherSize) => (
            Kind::OtherSize,
            format!("{names} called {own} as collective {number}, and the others with another size: {usual}"),
        ),
        Some(Kind::OtherRoot) => (
            Kind::OtherRoot,
            format!("{names} called {own} as collective {number}, and the others with another root: {usual}"),
        ),
        _ => (
            Kind::OtherOperation,
            format!("{names} called {own} as collective {number}, where the others called {usual}"),
        ),
    };
    Finding::new(job, kind, others, problem).with_calls(calls.iter().map(|(rank, call)| (*rank, *call)))
}

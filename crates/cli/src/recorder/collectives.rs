//! Collectives: all ranks of a communicator call the same ones in the same order.

use std::collections::BTreeMap;

use itertools::Itertools;

use super::finding::{Agreement, Finding, Kind, name_ranks, ranks_have, usual};
use super::recording::{Job, Rank, Record};

/// The ranks' calls of a collective.
type Calls<'a> = BTreeMap<usize, &'a Record>;

/// Returns the first collective of a communicator whose calls differ between ranks.
pub(super) fn divergence(job: &Job) -> Option<Finding> {
    // Collectives that a ring has overwritten count as equal, because the following numbers agree.
    let first = job.ranks.values().map(Rank::first_collective).max()?;
    let from_first = |recorded| Rank::collectives(recorded).skip_while(move |(number, _)| *number < first);
    let mut ranks: Vec<_> =
        job.ranks.iter().map(|(rank, recorded)| (*rank, from_first(recorded).peekable())).collect();
    let (mut calls, mut agreement) = (Vec::with_capacity(ranks.len()), None);
    // All ranks advance together, so that each record is visited only one time.
    let number = loop {
        let number = ranks.iter_mut().filter_map(|(_, own)| Some(own.peek()?.0)).min()?;
        calls.clear();
        for (rank, own) in &mut ranks {
            calls.extend(own.next_if(|(next, _)| *next == number).map(|(_, call)| (*rank, call)));
        }
        let [(_, lowest), others @ ..] = &calls[..] else { return None };
        if calls.len() < ranks.len() || others.iter().any(|(_, call)| !is_same(call, lowest)) {
            break number;
        }
        agreement = Some((number, *lowest));
    };
    let following = ranks.iter_mut().filter_map(|(rank, own)| Some((*rank, *own.peek()?)));
    let following = following.filter(|(_, (next, _))| number.checked_add(1) == Some(*next));
    let following: Calls<'_> = following.map(|(rank, (_, call))| (rank, call)).collect();
    let calls: Calls<'_> = calls.into_iter().collect();
    let usual = usual(calls.values().copied(), identity)?;
    let finding = match calls.values().all(|call| is_same(call, usual)) {
        true => count_differs(job, number, usual, &calls),
        false => call_differs(job, number, usual, &calls, &following),
    };
    let last_agreement = agreement.map(|(collective, call)| Agreement { collective, call: call.to_string() });
    Some(Finding { collective: Some(number), last_agreement, ..finding })
}

/// The properties that all ranks' calls of one collective share: operation, type, root, and number of elements.
type Identity<'a> = (&'a str, Option<&'a str>, Option<usize>, Option<[u64; 2]>);

fn identity(call: &Record) -> Identity<'_> {
    // In vector collectives, the numbers of elements differ between ranks.
    let elements = Some([call.sent, call.received]).filter(|_| !call.kind().ends_with("_v"));
    (call.kind(), call.data_type.as_deref(), call.peer, elements)
}

fn is_same(one: &Record, other: &Record) -> bool {
    identity(one) == identity(other)
}

/// Returns the first argument in which two calls of one operation differ.
fn difference(one: &Record, other: &Record) -> Option<(Kind, &'static str)> {
    let ((kind, data_type, root, elements), other) = (identity(one), identity(other));
    let differences = [
        (data_type != other.1, Kind::OtherType, "type"),
        (root != other.2, Kind::OtherRoot, "root"),
        (elements != other.3, Kind::OtherSize, "size"),
    ];
    let first = differences.into_iter().find(|(differs, ..)| kind == other.0 && *differs)?;
    Some((first.1, first.2))
}

/// Returns the finding for a collective that only some ranks have called.
fn count_differs(job: &Job, number: u64, usual: &Record, calls: &Calls<'_>) -> Finding {
    let (called, missing): (Vec<usize>, Vec<usize>) =
        job.ranks.keys().partition(|rank| calls.contains_key(rank));
    let (kind, ranks, problem) = if called.len() < missing.len() {
        let (names, others) = (name_ranks(&called), missing.len());
        let call = format!("{usual} as collective {number}");
        let problem = format!("{names} called {call}, which the other {others} have not called");
        (Kind::ExtraCall, called, problem)
    } else {
        let problem = format!("{} not called collective {number}, {usual}", ranks_have(&missing));
        (Kind::MissingCall, missing, problem)
    };
    // The other ranks may be in another call.
    let elsewhere = job.open_calls().filter(|(rank, _)| !calls.contains_key(rank));
    let calls = calls.iter().map(|(rank, call)| (*rank, *call));
    let all = calls.merge_by(elsewhere, |(one, _), (other, _)| one < other);
    Finding::new(&job.id, kind, ranks, problem, all)
}

/// Returns the finding for different calls with this number. `following` has the calls of the next collective.
fn call_differs(job: &Job, number: u64, usual: &Record, calls: &Calls<'_>, following: &Calls<'_>) -> Finding {
    let (agreeing, others): (Vec<usize>, Vec<usize>) =
        calls.keys().partition(|rank| is_same(calls[rank], usual));
    let next = |rank: &usize| following.get(rank).copied();
    let usual_next = agreeing.iter().find_map(next);
    let is = |one: Option<&Record>, other: Option<&Record>| {
        one.zip(other).is_some_and(|(one, other)| is_same(one, other))
    };
    let (own, own_next) = (calls[&others[0]], next(&others[0]));
    let names = name_ranks(&others);
    let called = format!("{names} called {own} as collective {number}");
    let (kind, problem) = match difference(own, usual) {
        _ if is(Some(own), usual_next) && is(own_next, Some(usual)) => {
            (Kind::OtherOrder, format!("{names} called {own} before {usual}, and the others after it"))
        }
        _ if is(own_next, Some(usual)) => (Kind::ExtraCall, format!("{called}, one more than the others")),
        _ if is(Some(own), usual_next) => {
            (Kind::MissingCall, format!("{names} left out collective {number}, {usual}"))
        }
        Some((kind, what)) => (kind, format!("{called}, and the others with another {what}: {usual}")),
        _ => (Kind::OtherOperation, format!("{called}, where the others called {usual}")),
    };
    Finding::new(&job.id, kind, others, problem, calls.iter().map(|(rank, call)| (*rank, *call)))
}

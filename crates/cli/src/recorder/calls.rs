//! The ranks' calls, compared: where they diverge, and which of them wait for each other.
//!
//! In a correct job, the ranks of a communicator call the same collectives in the same order, and sends match receives.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr;

use itertools::Itertools;

use super::finding::{Agreement, Call, Finding, Kind, name_ranks, ranks_have, usual};
use super::recording::{Job, Process, Rank, Record};
use crate::output;

/// The calls of one collective, by rank.
type Calls<'a> = BTreeMap<usize, &'a Record>;

/// Returns the first collective of a communicator whose calls differ between ranks.
pub(super) fn different_collective(job: &Job) -> Option<Finding> {
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

/// Returns the properties that all ranks' calls of one collective share: operation, type, root, and number of elements.
fn identity(call: &Record) -> (&str, Option<&str>, Option<usize>, Option<[u64; 2]>) {
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
    let (called, missing): (Vec<usize>, _) = job.ranks.keys().partition(|rank| calls.contains_key(rank));
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

/// Returns the finding for a collective number at which ranks' calls differ. `following` has the calls of the next collective.
fn call_differs(job: &Job, number: u64, usual: &Record, calls: &Calls<'_>, following: &Calls<'_>) -> Finding {
    let (agreeing, others): (Vec<usize>, _) = calls.keys().partition(|rank| is_same(calls[rank], usual));
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

/// The point-to-point operations of a communicator, by sender and receiver.
#[derive(Debug, Default)]
struct PointToPoint<'a>(BTreeMap<(usize, usize), Link<'a>>);

/// The sends from one rank to another, and the receives, each in call order.
#[derive(Debug, Default)]
struct Link<'a> {
    sends: Vec<&'a Record>,
    receives: Vec<&'a Record>,
}

impl<'a> PointToPoint<'a> {
    fn of(job: &'a Job) -> Self {
        let mut all = Self::default();
        for (rank, recorded) in &job.ranks {
            for record in &recorded.records {
                if let Some(destination) = destination(record) {
                    all.0.entry((*rank, destination)).or_default().sends.push(record);
                }
                if let Some(source) = source(record) {
                    all.0.entry((source, *rank)).or_default().receives.push(record);
                }
            }
        }
        all
    }

    /// Returns the peers that this call waits for, which have made fewer matching calls than this rank has made up to `record`.
    fn awaited(&self, rank: usize, record: &Record) -> impl Iterator<Item = usize> {
        let so_far = |calls: &[&Record]| calls.partition_point(|call| call.number <= record.number);
        let link = |source: usize, destination: usize| self.0.get(&(source, destination));
        let receiver = destination(record).filter(|receiver| {
            link(rank, *receiver).is_some_and(|link| link.receives.len() < so_far(&link.sends))
        });
        let sender = source(record).filter(|sender| {
            link(*sender, rank).is_some_and(|link| link.sends.len() < so_far(&link.receives))
        });
        [receiver, sender].into_iter().flatten()
    }
}

/// Returns the first unmatched or mismatched send or receive between each two ranks of a communicator.
pub(super) fn unmatched(job: &Job) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ((source, destination), link) in &PointToPoint::of(job).0 {
        // If the first records are lost, sends and receives cannot be matched.
        let is_whole = |rank: &usize| job.ranks.get(rank).is_some_and(Rank::is_whole);
        if is_whole(source) && is_whole(destination) {
            findings.extend(link.divergence(job, *source, *destination));
        }
    }
    findings
}

impl Link<'_> {
    fn divergence(&self, job: &Job, source: usize, destination: usize) -> Option<Finding> {
        let pairs = self.sends.iter().zip(&self.receives);
        let same = pairs.take_while(|(send, receive)| matches(send, receive)).count();
        let number = same + 1;
        let (record, caller, missing, problem) = match (self.sends.get(same), self.receives.get(same)) {
            (None, None) => return None,
            (Some(send), Some(receive)) => {
                let (sent, expected) = (elements(send.sent, send), elements(receive.received, receive));
                let send_name = format!("send {number} from rank {source} to rank {destination}");
                let problem = format!("{send_name}: {sent} are sent, and {expected} expected");
                let (ranks, calls) = (vec![source, destination], [(source, *send), (destination, *receive)]);
                return Some(Finding::new(&job.id, Kind::OtherMessage, ranks, problem, calls));
            }
            (Some(send), None) => {
                let send_name = format!("send {number} of rank {source}");
                let problem = format!("rank {destination} has not received {send_name}, which called {send}");
                (*send, source, destination, problem)
            }
            (None, Some(receive)) => {
                let receive_name = format!("receive {number} of rank {destination}");
                let problem =
                    format!("rank {source} has not sent for {receive_name}, which called {receive}");
                (*receive, destination, source, problem)
            }
        };
        let other = job.ranks.get(&missing).and_then(Rank::open_call).map(|call| (missing, call));
        let calls = [Some((caller, record)), other].into_iter().flatten();
        Some(Finding::new(&job.id, Kind::UnmatchedMessage, vec![missing], problem, calls))
    }
}

fn matches(send: &Record, receive: &Record) -> bool {
    send.sent == receive.received && send.data_type == receive.data_type
}

fn elements(count: u64, record: &Record) -> String {
    format!("{count} {}", output::in_line(record.data_type.as_deref().unwrap_or("elements")))
}

fn destination(record: &Record) -> Option<usize> {
    record.peer.filter(|_| matches!(record.kind(), "send" | "send_recv"))
}

fn source(record: &Record) -> Option<usize> {
    match record.kind() {
        "recv" => record.peer,
        "send_recv" => record.source,
        _ => None,
    }
}

/// A sequential caller: a process, or a rank if its process has several on a communicator.
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

/// For each of `waits` on a communicator, adds the indices of the waits that it depends on, whose ranks lack the matching call.
///
/// The number of direct edges would be quadratic. Therefore, an additional node for each collective number leads to the ranks
/// whose last collective has this number, and to the node of the next lower number. A wait leads to one such node.
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

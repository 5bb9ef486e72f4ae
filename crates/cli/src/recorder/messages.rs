//! Messages: each send has a receive at the other end, in the same order.

use super::finding::{Finding, Kind};
use super::recording::{Job, Rank, Record};

/// Returns the first message between each two ranks of a communicator that has no other end, or one that differs.
pub(super) fn divergences(job: &Job) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (source, sender) in &job.ranks {
        for (destination, receiver) in &job.ranks {
            // Without the first messages, it is not known which belong together.
            if sender.is_whole() && receiver.is_whole() {
                findings.extend(between(job, (*source, sender), (*destination, receiver)));
            }
        }
    }
    findings
}

fn between(
    job: &Job,
    (source, sender): (usize, &Rank),
    (destination, receiver): (usize, &Rank),
) -> Option<Finding> {
    let mut sends = sender.records.iter().filter(|record| sends_to(record, destination));
    let mut receives = receiver.records.iter().filter(|record| receives_from(record, source));
    for number in 1_u64.. {
        let (kind, ranks, problem) = match (sends.next(), receives.next()) {
            (None, None) => return None,
            (Some(send), Some(receive)) if is_same(send, receive) => continue,
            (Some(send), Some(receive)) => {
                let problem = format!(
                    "message {number} from rank {source} to rank {destination}: {} {} are sent, and {} {} expected",
                    send.sent,
                    type_of(send),
                    receive.received,
                    type_of(receive),
                );
                let finding = Finding::new(job, Kind::OtherMessage, vec![source, destination], problem);
                return Some(finding.with_calls([(source, send), (destination, receive)]));
            }
            (Some(send), None) => {
                let problem = format!(
                    "rank {destination} has not received message {number} of rank {source}, which called {send}"
                );
                (send, vec![destination], problem)
            }
            (None, Some(receive)) => {
                let problem = format!(
                    "rank {source} has not sent message {number} to rank {destination}, which called {receive}"
                );
                (receive, vec![source], problem)
            }
        };
        let (record, caller) = (kind, if ranks == [source] { destination } else { source });
        let other = job.ranks.get(&ranks[0]).and_then(Rank::open_call).map(|call| (ranks[0], call));
        let calls = [Some((caller, record)), other].into_iter().flatten();
        return Some(Finding::new(job, Kind::UnmatchedMessage, ranks, problem).with_calls(calls));
    }
    None
}

fn is_same(send: &Record, receive: &Record) -> bool {
    send.sent == receive.received && send.data_type == receive.data_type
}

fn type_of(record: &Record) -> &str {
    record.data_type.as_deref().unwrap_or("elements")
}

pub(super) fn sends_to(record: &Record, rank: usize) -> bool {
    matches!(record.kind(), "send" | "sendrecv") && record.peer == Some(rank)
}

pub(super) fn receives_from(record: &Record, rank: usize) -> bool {
    match record.kind() {
        "recv" => record.peer == Some(rank),
        "sendrecv" => record.source == Some(rank),
        _ => false,
    }
}

/// Returns the ranks for which an operation that is not completed waits: those that have not made its counterpart.
pub(super) fn awaited(job: &Job, rank: usize, record: &Record) -> Vec<usize> {
    if !record.state.is_open() {
        return vec![];
    }
    let others = job.ranks.iter().filter(|(other, _)| **other != rank);
    if let Some(number) = record.collective {
        return others
            .filter(|(_, other)| other.last_collective() < number)
            .map(|(other, _)| *other)
            .collect();
    }
    let Some(own) = job.ranks.get(&rank) else { return vec![] };
    // As many of the other end as this rank has called so far, this one included.
    let is_short = |other: usize, recorded: &Rank| {
        let mine = |is: fn(&Record, usize) -> bool| {
            own.records
                .iter()
                .take_while(|call| call.number <= record.number)
                .filter(|call| is(call, other))
                .count()
        };
        let theirs =
            |is: fn(&Record, usize) -> bool| recorded.records.iter().filter(|call| is(call, rank)).count();
        (sends_to(record, other) && theirs(receives_from) < mine(sends_to))
            || (receives_from(record, other) && theirs(sends_to) < mine(receives_from))
    };
    others.filter(|(other, recorded)| is_short(**other, recorded)).map(|(other, _)| *other).collect()
}

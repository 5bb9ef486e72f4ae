//! Messages: each send has a receive at the other end, in the same order.

use std::collections::BTreeMap;

use super::finding::{Finding, Kind};
use super::recording::{Job, Rank, Record};
use crate::output;

/// The messages of a communicator, by sender and receiver.
#[derive(Debug, Default)]
pub(super) struct Messages<'a>(BTreeMap<(usize, usize), Link<'a>>);

/// The messages from one rank to another, in the order of either.
#[derive(Debug, Default)]
struct Link<'a> {
    sends: Vec<&'a Record>,
    receives: Vec<&'a Record>,
}

impl<'a> Messages<'a> {
    pub(super) fn of(job: &'a Job) -> Self {
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

    /// Returns the ranks for whose counterpart a message of a rank waits: those that have called fewer than this rank has of
    /// its own, up to this one.
    pub(super) fn awaited(&self, rank: usize, record: &Record) -> impl Iterator<Item = usize> {
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

/// Returns the first message between each two ranks of a communicator that has no other end, or one that differs.
pub(super) fn divergences(job: &Job) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ((source, destination), link) in &Messages::of(job).0 {
        // Without the first messages, it is not known which belong together.
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
        let same = pairs.take_while(|(send, receive)| is_same(send, receive)).count();
        let number = same + 1;
        let (record, caller, missing, problem) = match (self.sends.get(same), self.receives.get(same)) {
            (None, None) => return None,
            (Some(send), Some(receive)) => {
                let (sent, expected) = (elements(send.sent, send), elements(receive.received, receive));
                let message = format!("message {number} from rank {source} to rank {destination}");
                let problem = format!("{message}: {sent} are sent, and {expected} expected");
                let (ranks, calls) = (vec![source, destination], [(source, *send), (destination, *receive)]);
                return Some(Finding::new(job, Kind::OtherMessage, ranks, problem, calls));
            }
            (Some(send), None) => {
                let message = format!("message {number} of rank {source}");
                let problem = format!("rank {destination} has not received {message}, which called {send}");
                (*send, source, destination, problem)
            }
            (None, Some(receive)) => {
                let message = format!("message {number} to rank {destination}");
                let problem = format!("rank {source} has not sent {message}, which called {receive}");
                (*receive, destination, source, problem)
            }
        };
        let other = job.ranks.get(&missing).and_then(Rank::open_call).map(|call| (missing, call));
        let calls = [Some((caller, record)), other].into_iter().flatten();
        Some(Finding::new(job, Kind::UnmatchedMessage, vec![missing], problem, calls))
    }
}

fn is_same(send: &Record, receive: &Record) -> bool {
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

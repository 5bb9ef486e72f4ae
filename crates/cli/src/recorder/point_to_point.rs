//! Point-to-point operations: each send has a matching receive on the peer, in the same order.

use std::collections::BTreeMap;

use super::finding::{Finding, Kind};
use super::recording::{Job, Rank, Record};
use crate::output;

/// The point-to-point operations of a communicator, by sender and receiver.
#[derive(Debug, Default)]
pub(super) struct PointToPoint<'a>(BTreeMap<(usize, usize), Link<'a>>);

/// The sends from one rank to another, and the receives, each in call order.
#[derive(Debug, Default)]
struct Link<'a> {
    sends: Vec<&'a Record>,
    receives: Vec<&'a Record>,
}

impl<'a> PointToPoint<'a> {
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

    /// Returns the peers for whose matching call this call waits: peers that have called fewer matching operations than this rank
    /// has called up to `record`.
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

/// Returns the first unmatched or mismatched send or receive between each two ranks of a communicator.
pub(super) fn divergences(job: &Job) -> Vec<Finding> {
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
        let same = pairs.take_while(|(send, receive)| is_same(send, receive)).count();
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

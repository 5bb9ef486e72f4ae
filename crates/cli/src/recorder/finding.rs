use std::fmt;

use serde::Serialize;

use super::recording::{Job, Record, State};

/// A place where the ranks of a communicator diverged.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    /// The id of the communicator.
    pub(super) communicator: String,
    pub(super) kind: Kind,
    /// The ranks that are to blame.
    pub(super) ranks: Vec<usize>,
    /// The number of the collective at which they diverged; `null` for messages.
    pub(super) collective: Option<u64>,
    /// One sentence.
    pub(super) problem: String,
    /// The calls of the ranks at this place, of those that have one.
    pub(super) calls: Vec<Call>,
    /// The last collective that all ranks called alike.
    pub(super) last_agreement: Option<Agreement>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// There is no recording of a rank.
    MissingRank,
    MissingCall,
    ExtraCall,
    OtherOperation,
    OtherType,
    OtherSize,
    OtherRoot,
    /// Two collectives in another order.
    OtherOrder,
    /// The ranks wait for each other on several communicators, or in a collective and a message.
    CircularWait,
    /// A send without receive, or the reverse.
    UnmatchedMessage,
    /// A send and its receive differ.
    OtherMessage,
    /// A call that did not return, although all ranks made it.
    NotCompleted,
}

#[derive(Debug, Serialize)]
pub(super) struct Call {
    pub(super) rank: usize,
    pub(super) call: String,
    pub(super) site: Option<String>,
    pub(super) state: State,
}

#[derive(Debug, Serialize)]
pub(super) struct Agreement {
    pub(super) collective: u64,
    pub(super) call: String,
}

impl Finding {
    pub(super) fn new(job: &Job, kind: Kind, ranks: Vec<usize>, problem: String) -> Self {
        let communicator = job.id.clone();
        Self { communicator, kind, ranks, collective: None, problem, calls: vec![], last_agreement: None }
    }

    pub(super) fn with_calls<'a>(mut self, calls: impl IntoIterator<Item = (usize, &'a Record)>) -> Self {
        self.calls = calls.into_iter().map(|(rank, record)| Call::new(rank, record)).collect();
        self
    }
}

impl Call {
    fn new(rank: usize, record: &Record) -> Self {
        let site = record.site.as_ref().map(ToString::to_string);
        Self { rank, call: record.to_string(), site, state: record.state }
    }
}

/// Returns `rank 1`, or `ranks 1, 2 and 5`.
pub(super) fn name_ranks(ranks: &[usize]) -> String {
    match ranks {
        [] => "no rank".into(),
        [rank] => format!("rank {rank}"),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(ToString::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.problem)?;
        for Call { rank, call, site, state } in &self.calls {
            let outcome = match state {
                State::Called => ", and waits",
                State::Failed => ", and failed",
                State::Queued | State::Completed => "",
            };
            let site = site.as_ref().map_or_else(String::new, |site| format!(" at {site}"));
            writeln!(f, "    rank {rank}: {call}{site}{outcome}")?;
        }
        match &self.last_agreement {
            Some(Agreement { collective, call }) => {
                writeln!(f, "    last agreement: collective {collective}, {call}")
            }
            None => Ok(()),
        }
    }
}

use std::fmt::{self, Display};
use std::hash::Hash;

use itertools::Itertools;
use serde::Serialize;

use super::recording::{Record, State};

/// The maximum number of ranks that a sentence names.
const NAMED: usize = 32;

/// A point at which the ranks of a communicator diverged.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) communicator: String,
    pub(super) kind: Kind,
    /// The ranks to blame; if they lack a recording, at most the first [`NAMED`].
    pub(super) ranks: Vec<usize>,
    /// The number of ranks to blame that are not in `ranks`.
    pub(super) more_ranks: usize,
    /// The number of the collective at which they diverged; `null` for point-to-point operations.
    pub(super) collective: Option<u64>,
    pub(super) problem: String,
    pub(super) calls: Vec<Call>,
    pub(super) last_agreement: Option<Agreement>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    MissingRank,
    MissingCall,
    ExtraCall,
    OtherOperation,
    OtherType,
    OtherSize,
    OtherRoot,
    OtherOrder,
    /// The ranks wait for each other, for example on several communicators.
    CircularWait,
    UnmatchedMessage,
    OtherMessage,
    /// A call that has not completed, although the matching calls have been made.
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

impl From<(usize, &Record)> for Call {
    fn from((rank, record): (usize, &Record)) -> Self {
        let site = record.site.as_ref().map(ToString::to_string);
        Self { rank, call: record.to_string(), site, state: record.state }
    }
}

impl Finding {
    pub(super) fn new(
        communicator: impl Display,
        kind: Kind,
        ranks: Vec<usize>,
        problem: String,
        calls: impl IntoIterator<Item: Into<Call>>,
    ) -> Self {
        let (communicator, calls) = (communicator.to_string(), calls.into_iter().map(Into::into).collect());
        let (more_ranks, collective, last_agreement) = (0, None, None);
        Self { communicator, kind, ranks, more_ranks, collective, problem, calls, last_agreement }
    }

    /// Returns the finding that `count` of `size` ranks have no recording or dump (`record`).
    pub(super) fn missing(
        communicator: impl Display,
        record: &str,
        ranks: impl Iterator<Item = usize>,
        count: usize,
        size: usize,
        calls: impl IntoIterator<Item: Into<Call>>,
    ) -> Self {
        let ranks: Vec<usize> = ranks.take(NAMED).collect();
        let (names, more_ranks) = (name_first_ranks(&ranks, count), count - ranks.len());
        let problem = format!("there is no {record} of {names} of {size}: dead, or none was requested");
        Self { more_ranks, ..Self::new(communicator, Kind::MissingRank, ranks, problem, calls) }
    }
}

/// Returns the call with the most frequent identity, which all calls should share; in a tie, the call of the lowest rank.
pub(super) fn usual<'a, C, I: Eq + Hash>(
    calls: impl DoubleEndedIterator<Item = &'a C> + Clone,
    identity: fn(&'a C) -> I,
) -> Option<&'a C> {
    let votes = calls.clone().map(identity).counts();
    calls.rev().max_by_key(|call| votes.get(&identity(call)).copied())
}

/// Returns `rank 1`, `ranks 1, 2 and 5`, or for many ranks `ranks 1, 2, 5 and 7 more`.
pub(super) fn name_ranks(ranks: &[usize]) -> String {
    name_first_ranks(ranks, ranks.len())
}

/// Returns the same as [`name_ranks`] for `count` ranks, of which `ranks` are the first.
fn name_first_ranks(ranks: &[usize], count: usize) -> String {
    let mut names: Vec<String> = ranks.iter().take(NAMED).map(ToString::to_string).collect();
    if count > names.len() {
        names.push(format!("{} more", count - names.len()));
    }
    match names.split_last() {
        None => "no rank".into(),
        Some((only, [])) => format!("rank {only}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

/// Returns `rank 1 has`, or `ranks 1, 2 and 5 have`.
pub(super) fn ranks_have(ranks: &[usize]) -> String {
    format!("{} {}", name_ranks(ranks), if ranks.len() == 1 { "has" } else { "have" })
}

impl Display for Finding {
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

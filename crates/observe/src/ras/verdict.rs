//! Conclusions from the reports of a job, in sentences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::counters::{Counters, compare};
use super::report::{RankReport, RankState, Report, ReportedCommunicator};
use libnccl::ResultCode;
use libnccl::sys::ncclResult_t;

/// A conclusion about a communicator or one of its ranks.
///
/// [`Display`](fmt::Display) writes one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The conclusion.
    #[serde(flatten)]
    pub kind: VerdictKind,
    /// The communicator.
    pub communicator: CommunicatorId,
    /// The rank that is to blame, if there is one.
    pub rank: Option<RankPlace>,
}

/// The identity of a communicator in reports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub struct CommunicatorId {
    /// The hash, as in [`ReportedCommunicator`].
    pub hash: String,
    /// The other hash, as in [`ReportedCommunicator`].
    pub secondary_hash: String,
    /// The number of ranks.
    pub size: u64,
}

/// A rank, and where it runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub struct RankPlace {
    /// The rank in its communicator.
    pub rank: u64,
    /// The IP address of its host, or `unknown`.
    pub host: String,
    /// The process id; -1 if it is unknown.
    pub pid: i64,
    /// The CUDA device; -1 if it is unknown.
    pub cuda_dev: i64,
}

/// A kind of conclusion, the gravest first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
#[non_exhaustive]
pub enum VerdictKind {
    /// The rank's process has not answered for a minute. It may also have ended as it should.
    Dead,
    /// The rank's process does not answer: it is stopped, has ended, or cannot be reached.
    Unresponsive,
    /// The rank reports an error of its initialisation or of an operation.
    Failed {
        /// The `ncclResult_t`.
        code: i64,
    },
    /// The rank aborted its communicator.
    Aborted,
    /// The rank called other collectives than the others: of one it has launched more, of another less.
    Mismatched {
        /// The rank that it is compared with, one of the majority.
        than: u64,
        /// The collectives of which it has launched more, and by how many.
        more: BTreeMap<String, u64>,
        /// The collectives of which it has launched less, and by how many.
        less: BTreeMap<String, u64>,
    },
    /// Nothing was launched between the first report and the last, while some ranks are behind or missing.
    Frozen {
        /// The ranks that have launched less than others.
        behind: Vec<u64>,
        /// The ranks that have not answered.
        missing: Vec<u64>,
    },
    /// The rank has launched less than most others.
    Straggler {
        /// The collective.
        collective: String,
        /// The number of it that the rank has launched.
        launched: u64,
        /// The number by which the first rank has launched more.
        behind: u64,
    },
    /// The rank has launched more than most others, and none has launched less.
    Ahead {
        /// The collective.
        collective: String,
        /// The number of it that the rank has launched.
        launched: u64,
        /// The number by which these are more than most others have.
        ahead: u64,
    },
    /// The rank's process answers and has no such communicator, or has it no more.
    Left,
    /// The rank is in another state than most others.
    OtherState {
        /// The rank's state.
        state: RankState,
        /// The state of most ranks.
        others: RankState,
    },
    /// Nothing was launched between the first report and the last, and all ranks have launched the same. No problem by
    /// itself: the program may do something else. RAS cannot tell that from GPUs that hang in what was launched.
    Idle,
}

impl VerdictKind {
    /// Returns `true` for what a report shows for certain, and `false` for what may be true for a moment in a sound job:
    /// the counters of a report are not taken at one instant.
    fn is_lasting(&self) -> bool {
        matches!(self, Self::Dead | Self::Unresponsive | Self::Failed { .. } | Self::Aborted)
    }

    /// Returns what is the same in two verdicts about the same thing.
    fn subject(&self) -> (u8, Option<&str>) {
        match self {
            Self::Dead => (0, None),
            Self::Unresponsive => (1, None),
            Self::Failed { .. } => (2, None),
            Self::Aborted => (3, None),
            Self::Mismatched { .. } => (4, None),
            Self::Frozen { .. } => (5, None),
            Self::Straggler { collective, .. } => (6, Some(collective)),
            Self::Ahead { collective, .. } => (7, Some(collective)),
            Self::Left => (8, None),
            Self::OtherState { .. } => (9, None),
            Self::Idle => (10, None),
        }
    }
}

impl Verdict {
    /// Returns `true` unless it is [`VerdictKind::Idle`].
    #[must_use]
    pub fn is_problem(&self) -> bool {
        self.kind != VerdictKind::Idle
    }
}

/// Returns the conclusions from reports of one job, the oldest first; the gravest verdict comes first.
///
/// From one report: ranks that are dead, do not answer, failed, aborted, left or are in another state; that called other
/// collectives; that are behind or ahead. Ranks of a sound job are apart for moments, too. With several reports, such a
/// verdict needs three of four of those that have the communicator, so that some reports within a second tell a straggler
/// from chance; and it is known whether a communicator is frozen, or idle. Frozen in the short time of a few reports may
/// be a long computation: the time between the first and the last is the measure.
#[must_use]
pub fn verdicts(reports: &[Report]) -> Vec<Verdict> {
    let mut seen: BTreeMap<CommunicatorId, Vec<&ReportedCommunicator>> = BTreeMap::new();
    for communicator in reports.iter().flat_map(|report| &report.communicators) {
        // One that is being initialised is reported with a size of 0 and nothing else.
        if communicator.size > 0 {
            seen.entry(CommunicatorId::of(communicator)).or_default().push(communicator);
        }
    }
    let mut verdicts = Vec::new();
    for (id, reported) in &seen {
        let conclude = |(kind, rank)| Verdict { kind, communicator: id.clone(), rank };
        verdicts.extend(
            last(&reported.iter().map(|one| examine(one)).collect::<Vec<_>>()).into_iter().map(conclude),
        );
        if let [first, .., last] = reported[..] {
            verdicts.extend(progress(first, last).map(|kind| conclude((kind, None))));
        }
    }
    verdicts.sort_by(|one, other| (&one.kind, &one.rank).cmp(&(&other.kind, &other.rank)));
    verdicts
}

type Finding = (VerdictKind, Option<RankPlace>);

/// Returns the latest form of the findings that count: of the lasting ones, those of the last report; of the others, those
/// of three of four reports.
fn last(findings: &[Vec<Finding>]) -> Vec<Finding> {
    let Some((latest, _)) = findings.split_last() else { return Vec::new() };
    let mut counted: BTreeMap<_, (usize, &Finding)> = BTreeMap::new();
    for finding in findings.iter().flatten().filter(|(kind, _)| !kind.is_lasting()) {
        let (kind, rank) = finding;
        let count = counted.get(&(kind.subject(), rank)).map_or(0, |(count, _)| *count);
        counted.insert((kind.subject(), rank), (count + 1, finding));
    }
    let frequent = counted.into_values().filter(|(count, _)| 4 * count >= 3 * findings.len());
    let lasting = latest.iter().filter(|(kind, _)| kind.is_lasting());
    lasting.chain(frequent.map(|(_, finding)| finding)).cloned().collect()
}

/// Returns what one report says about a communicator.
fn examine(communicator: &ReportedCommunicator) -> Vec<Finding> {
    let mut findings = Vec::new();
    for missing in &communicator.missing_ranks {
        let kind = match missing.status {
            status if status.considered_dead => VerdictKind::Dead,
            status if status.unresponsive => VerdictKind::Unresponsive,
            _ => VerdictKind::Left,
        };
        let (host, pid, cuda_dev) = (missing.host.clone(), missing.pid, missing.cuda_dev);
        findings.push((kind, Some(RankPlace { rank: missing.rank, host, pid, cuda_dev })));
    }
    let ranks = &communicator.ranks;
    let common = most_common(ranks.iter().map(|rank| rank.status.state()));
    for rank in ranks {
        let status = &rank.status;
        // 7 is ncclInProgress.
        let errors =
            [status.init_state, status.async_error].into_iter().filter(|code| !matches!(code, 0 | 7));
        findings.extend(errors.take(1).map(|code| (VerdictKind::Failed { code }, Some(RankPlace::of(rank)))));
        match (status.state(), common) {
            (RankState::Abort, _) => findings.push((VerdictKind::Aborted, Some(RankPlace::of(rank)))),
            (state, Some(others)) if state != others => {
                findings.push((VerdictKind::OtherState { state, others }, Some(RankPlace::of(rank))));
            }
            _ => {}
        }
    }
    findings.extend(compare_counters(ranks));
    findings
}

/// Returns the ranks whose counters differ from those of most others.
fn compare_counters(ranks: &[RankReport]) -> Vec<Finding> {
    let Some(common) = most_common(ranks.iter().map(|rank| &rank.collective_counts)) else {
        return Vec::new();
    };
    let than = ranks.iter().find(|rank| rank.collective_counts == *common).map_or(0, |rank| rank.rank);
    let (mut findings, mut in_order) = (Vec::new(), Vec::new());
    for rank in ranks {
        let [more, less] = compare(&rank.collective_counts, common);
        if more.is_empty() || less.is_empty() {
            in_order.push(rank);
        } else {
            findings.push((VerdictKind::Mismatched { than, more, less }, Some(RankPlace::of(rank))));
        }
    }
    let names: BTreeSet<&String> = in_order.iter().flat_map(|rank| rank.collective_counts.keys()).collect();
    for name in names {
        let launched = |rank: &RankReport| rank.collective_counts.get(name).copied().unwrap_or(0);
        let mut sorted: Vec<u64> = in_order.iter().map(|rank| launched(rank)).collect();
        sorted.sort_unstable();
        // Of two ranks, the greater one: one that is behind holds the other up.
        let (median, most) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
        let is_behind = sorted[0] < median;
        for rank in &in_order {
            let (collective, launched) = (name.clone(), launched(rank));
            let kind = if launched < median {
                VerdictKind::Straggler { collective, launched, behind: most - launched }
            } else if launched > median && !is_behind {
                VerdictKind::Ahead { collective, launched, ahead: launched - median }
            } else {
                continue;
            };
            findings.push((kind, Some(RankPlace::of(rank))));
        }
    }
    findings
}

/// Returns the verdict on a communicator whose counters are the same in two reports. One that has launched nothing, such as
/// one for sends and receives, says nothing.
fn progress(first: &ReportedCommunicator, last: &ReportedCommunicator) -> Option<VerdictKind> {
    let before: BTreeMap<u64, &Counters> =
        first.ranks.iter().map(|rank| (rank.rank, &rank.collective_counts)).collect();
    let has_moved =
        |rank: &RankReport| before.get(&rank.rank).is_none_or(|before| **before != rank.collective_counts);
    if last.ranks.is_empty() || last.ranks.iter().any(has_moved) {
        return None;
    }
    let sum = |counters: &Counters| counters.values().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let most = last.ranks.iter().map(|rank| sum(&rank.collective_counts)).max().filter(|most| *most > 0)?;
    let is_behind = |rank: &&RankReport| sum(&rank.collective_counts) < most;
    let behind: Vec<u64> = last.ranks.iter().filter(is_behind).map(|rank| rank.rank).collect();
    // Ranks that have left hold nobody up who is level with the others.
    let silent =
        last.missing_ranks.iter().filter(|rank| rank.status.unresponsive || rank.status.considered_dead);
    let missing: Vec<u64> = silent.map(|rank| rank.rank).collect();
    let is_level = behind.is_empty() && missing.is_empty();
    Some(if is_level { VerdictKind::Idle } else { VerdictKind::Frozen { behind, missing } })
}

/// Returns the most common value; of several, the first one.
fn most_common<T: Ord + Copy>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut counted: BTreeMap<T, (usize, usize)> = BTreeMap::new();
    for (index, value) in values.enumerate() {
        counted.entry(value).or_insert((0, index)).0 += 1;
    }
    counted.into_iter().max_by_key(|(_, (count, index))| (*count, usize::MAX - index)).map(|(value, _)| value)
}

impl CommunicatorId {
    fn of(communicator: &ReportedCommunicator) -> Self {
        let ReportedCommunicator { hash, secondary_hash, size, .. } = communicator;
        Self { hash: hash.clone(), secondary_hash: secondary_hash.clone(), size: *size }
    }
}

impl RankPlace {
    fn of(rank: &RankReport) -> Self {
        Self { rank: rank.rank, host: rank.host.clone(), pid: rank.pid, cuda_dev: rank.cuda_dev }
    }
}

/// Formats as the process and its device.
impl fmt::Display for RankPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, cuda_dev, .. } = self;
        if *pid < 0 {
            return f.write_str("an unknown process");
        }
        write!(f, "process {pid} on {host}, device {cuda_dev}")
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CommunicatorId { hash, size, .. } = &self.communicator;
        let Some(place) = &self.rank else {
            write!(f, "communicator {hash} of {size} ranks ")?;
            return match &self.kind {
                VerdictKind::Frozen { behind, missing } => {
                    f.write_str("is frozen: no rank has launched a collective between the reports")?;
                    if !behind.is_empty() {
                        write!(f, ", and {} behind", list(behind))?;
                    }
                    if !missing.is_empty() {
                        write!(f, ", and {} missing", list(missing))?;
                    }
                    Ok(())
                }
                _ => f.write_str(
                    "is idle: no rank has launched a collective between the reports, and all have launched the same",
                ),
            };
        };
        write!(f, "rank {} of {size} ", place.rank)?;
        match &self.kind {
            VerdictKind::Dead => f.write_str("is dead: its process cannot be reached any more")?,
            VerdictKind::Unresponsive => {
                f.write_str("does not answer: its process is stopped, has ended, or cannot be reached")?;
            }
            VerdictKind::Left => {
                f.write_str("has left: its process answers, and has no such communicator")?;
            }
            VerdictKind::Failed { code } => {
                match u32::try_from(*code).map(|code| ResultCode::from_raw(ncclResult_t(code))) {
                    Ok(code) => write!(f, "has failed: it reports {code}")?,
                    Err(_) => write!(f, "has failed: it reports the unknown error {code}")?,
                }
            }
            VerdictKind::Aborted => f.write_str("has aborted its communicator")?,
            VerdictKind::OtherState { state, others } => {
                write!(f, "is in state {state}, most others in {others}")?;
            }
            VerdictKind::Mismatched { than, more, less } => write!(
                f,
                "has called other collectives than rank {than}: {} more and {} less",
                amounts(more),
                amounts(less)
            )?,
            VerdictKind::Straggler { collective, launched, behind } => {
                write!(
                    f,
                    "is a straggler: it has launched {launched} {collective}, {behind} less than the first"
                )?;
            }
            VerdictKind::Ahead { collective, launched, ahead } => {
                write!(
                    f,
                    "is ahead: it has launched {launched} {collective}, {ahead} more than most others"
                )?;
            }
            VerdictKind::Frozen { .. } | VerdictKind::Idle => {}
        }
        write!(f, " ({place}; communicator {hash})")
    }
}

fn list(ranks: &[u64]) -> String {
    const NAMED: usize = 8;
    let named = ranks.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match ranks.len() {
        1 => format!("rank {named} is"),
        count if count > NAMED => format!("{count} ranks (the first: {named}) are"),
        _ => format!("ranks {named} are"),
    }
}

fn amounts(amounts: &BTreeMap<String, u64>) -> String {
    amounts.iter().map(|(name, by)| format!("{by} {name}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Report, verdicts};
    use crate::ras::report::tests::sample;

    fn rank(rank: u64, all_reduce: u64, broadcast: u64) -> Value {
        json!({
            "rank": rank, "host": "10.0.0.1", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank,
            "status": { "init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false },
            "collective_counts": { "AllReduce": all_reduce, "Broadcast": broadcast },
        })
    }

    fn missing(rank: u64, unresponsive: bool, considered_dead: bool) -> Value {
        json!({
            "rank": rank, "host": "10.0.0.2", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank,
            "status": { "unresponsive": unresponsive, "considered_dead": considered_dead },
        })
    }

    fn report(ranks: &[Value], missing: &[Value]) -> Report {
        let communicator = json!({
            "hash": "0xab", "secondary_hash": "0x1:0x2", "size": ranks.len() + missing.len(),
            "ranks": ranks, "missing_ranks": missing,
        });
        let initialising = json!({ "hash": "0x0", "secondary_hash": "0x0:0x0", "size": 0 });
        let report = json!({ "nccl_version": "2.30.7", "communicators": [communicator, initialising] });
        Report::parse(report.to_string().as_bytes()).unwrap()
    }

    /// Returns the report of ranks with these numbers of all-reduces.
    fn level(counts: &[u64]) -> Report {
        let ranks: Vec<Value> =
            counts.iter().zip(0..).map(|(count, number)| rank(number, *count, 0)).collect();
        report(&ranks, &[])
    }

    fn texts(reports: &[Report]) -> Vec<String> {
        verdicts(reports).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rank_behind_is_a_straggler_by_the_difference_to_the_first() {
        assert_eq!(
            texts(&[level(&[120, 120, 117, 120])]),
            [
                "rank 2 of 4 is a straggler: it has launched 117 AllReduce, 3 less than the first (process 102 on \
              10.0.0.1, device 2; communicator 0xab)"
            ]
        );
        // Of two ranks, it is the one behind.
        assert!(texts(&[level(&[120, 119])])[0].starts_with("rank 1 of 2 is a straggler"));
        assert_eq!(texts(&[level(&[120, 120])]), [""; 0]);
    }

    #[test]
    fn rank_ahead_of_most_others_is_named_in_their_place() {
        let texts = texts(&[level(&[5, 5, 5, 6])]);
        assert_eq!(texts.len(), 1);
        assert!(
            texts[0]
                .starts_with("rank 3 of 4 is ahead: it has launched 6 AllReduce, 1 more than most others")
        );
    }

    #[test]
    fn rank_behind_in_three_of_four_reports_is_a_straggler() {
        let (slow, even) = (|at: u64| level(&[at, at, at - 1, at]), |at: u64| level(&[at; 4]));
        let reports = [slow(10), slow(20), even(30), slow(40)];
        assert!(texts(&reports)[0].contains("launched 39 AllReduce"), "{:?}", texts(&reports));
        assert_eq!(texts(&[slow(10), even(20), even(30), slow(40)]), [""; 0]);
        assert_eq!(texts(&[slow(10), even(20)]), [""; 0], "one that has caught up");
    }

    #[test]
    fn communicator_without_progress_is_frozen_if_ranks_are_apart_and_else_idle() {
        let apart = level(&[120, 120, 117, 120]);
        let texts_apart = texts(&[apart.clone(), apart]);
        assert_eq!(
            texts_apart[0],
            "communicator 0xab of 4 ranks is frozen: no rank has launched a collective between the reports, and rank 2 \
             is behind"
        );
        assert!(texts_apart[1].starts_with("rank 2 of 4 is a straggler"));
        let idle = verdicts(&[level(&[7, 7]), level(&[7, 7])]);
        assert!(idle.len() == 1 && !idle[0].is_problem() && idle[0].to_string().contains(" is idle: "));
        assert_eq!(texts(&[level(&[0, 0]), level(&[0, 0])]), [""; 0], "nothing was ever launched");
        assert_eq!(texts(&[level(&[7, 7]), level(&[8, 8])]), [""; 0]);
    }

    #[test]
    fn rank_with_more_of_one_and_less_of_another_collective_is_mismatched() {
        let ranks = [rank(0, 120, 3), rank(1, 119, 4), rank(2, 120, 3), rank(3, 118, 3)];
        let texts = texts(&[report(&ranks, &[])]);
        assert_eq!(
            texts[0],
            "rank 1 of 4 has called other collectives than rank 0: 1 Broadcast more and 1 AllReduce less (process 101 \
             on 10.0.0.1, device 1; communicator 0xab)"
        );
        assert!(texts.len() == 2 && texts[1].starts_with("rank 3 of 4 is a straggler"), "{texts:?}");
    }

    #[test]
    fn missing_ranks_are_dead_unresponsive_or_gone() {
        let missing = [missing(1, true, true), missing(2, true, false), missing(3, false, false)];
        let one = report(&[rank(0, 5, 0)], &missing);
        let texts = texts(&[one.clone(), one]);
        let starts = [
            "rank 1 of 4 is dead: its process cannot be reached any more (process 101 on 10.0.0.2, device 1;",
            "rank 2 of 4 does not answer: its process is stopped, has ended, or cannot be reached (process 102",
            "communicator 0xab of 4 ranks is frozen: no rank has launched a collective between the reports, and ranks 1, 2 \
             are missing",
            "rank 3 of 4 has left: its process answers, and has no such communicator",
        ];
        assert_eq!(texts.len(), starts.len());
        assert!(texts.iter().zip(starts).all(|(text, start)| text.starts_with(start)), "{texts:#?}");
    }

    #[test]
    fn failure_and_death_count_if_the_last_report_has_them() {
        let sound = level(&[5, 5, 5]);
        let dead = report(&[rank(0, 5, 0), rank(1, 5, 0)], &[missing(2, true, true)]);
        assert!(texts(&[sound.clone(), sound.clone(), dead.clone()])[0].starts_with("rank 2 of 3 is dead"));
        assert!(texts(&[dead, sound]).iter().all(|text| !text.contains("is dead")));
    }

    #[test]
    fn state_and_errors_of_ranks_are_named() {
        let mut ranks = [rank(0, 5, 0), rank(1, 5, 0), rank(2, 5, 0), rank(3, 5, 0)];
        ranks[1]["status"]["async_error"] = json!(6);
        ranks[2]["status"]["finalize_called"] = json!(true);
        ranks[3]["status"]["abort_flag"] = json!(true);
        let texts = texts(&[report(&ranks, &[])]);
        assert!(texts[0].starts_with("rank 1 of 4 has failed: it reports ncclRemoteError"), "{texts:?}");
        assert!(texts[1].starts_with("rank 3 of 4 has aborted its communicator (process 103"), "{texts:?}");
        assert!(
            texts[2].starts_with("rank 2 of 4 is in state FINALIZE, most others in RUNNING"),
            "{texts:?}"
        );
        assert_eq!(texts.len(), 3);
    }

    #[test]
    fn verdict_as_json_has_its_kind_communicator_and_rank() {
        let verdicts = verdicts(&[Report::parse(sample(",").as_bytes()).unwrap()]);
        assert_eq!(
            serde_json::to_value(&verdicts).unwrap(),
            json!([{
                "verdict": "unresponsive",
                "communicator": { "hash": "0xabcdef0012345678", "secondary_hash": "0xa482312ac0ba3842:0x370e4961290f2502", "size": 2 },
                "rank": { "rank": 1, "host": "10.0.0.1", "pid": 19310, "cuda_dev": 1 },
            }])
        );
    }
}

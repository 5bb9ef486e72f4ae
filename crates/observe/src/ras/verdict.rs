//! Conclusions from the reports of a job, in sentences. The rule of each kind of verdict is one function.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::report::{MissingRank, MissingStatus, RankReport, RankState, Report, ReportedCommunicator};
use libnccl::error::ResultCode;
use libnccl::sys::ncclResult_t;

/// A conclusion about a communicator, one of its ranks, or the report.
///
/// [`Display`](fmt::Display) writes one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The conclusion.
    #[serde(flatten)]
    pub kind: VerdictKind,
    /// The communicator; `None` if the verdict is about the report.
    pub communicator: Option<CommunicatorId>,
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
    /// The rank's process has not answered for a minute. It may also have exited normally.
    Dead,
    /// The rank's process does not answer: it is stopped, has exited, or cannot be reached.
    Unresponsive,
    /// The rank reports an error of its initialization or of an operation, or has aborted its communicator.
    Failed {
        /// The `ncclResult_t`; `None` for an abort.
        code: Option<i64>,
    },
    /// The report lacks something about the job, a communicator or a rank, or contradicts itself. A rank whose process
    /// answers, but no longer has this communicator, is one of these.
    Incomplete {
        /// What is missing, or the contradiction.
        problem: String,
    },
    /// The rank called other collectives than the others: it has launched more of one, and less of another.
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
        /// The ranks that do not answer.
        missing: Vec<u64>,
    },
    /// The rank has launched less than most others, by more than the duration of a report explains.
    Straggler {
        /// The collective.
        collective: String,
        /// The number of it that the rank has launched.
        launched: u64,
        /// The number that the rank with the most has launched beyond that.
        behind: u64,
    },
    /// Nothing was launched between the first report and the last, and all ranks have launched the same. Not a problem by
    /// itself: the program may do something else. RAS cannot distinguish that from GPUs that hang in what was launched, nor
    /// from ranks that wait in sends and receives.
    Idle,
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
/// | verdict | rule |
/// |---|---|
/// | dead, unresponsive, failed, incomplete | the last report shows it |
/// | mismatched | three of four reports show it, and the last: counters are not read at one instant |
/// | straggler | three of four reports, of two or more, show it behind the median by a quarter or more of what is launched from one report to the next |
/// | frozen, idle | the counters of the first report and the last are equal |
///
/// A report does not query all ranks at one instant. Ranks of a healthy job differ by what they launch meanwhile, which may be
/// thousands of short collectives. So let a report take less than a quarter of the time between two reports. Some reports
/// within a second are enough. Frozen for such a short time may be a long computation: the time between the first and the
/// last report is the measure.
#[must_use]
pub fn verdicts(reports: &[Report]) -> Vec<Verdict> {
    let by_id: Vec<_> = reports.iter().map(by_id).collect();
    let Some((last, communicators)) = reports.last().zip(by_id.last()) else { return Vec::new() };
    let job = job_defects(last).into_iter();
    let mut verdicts: Vec<Verdict> =
        job.map(|problem| Verdict { kind: incomplete(problem), communicator: None, rank: None }).collect();
    for (id, listed) in communicators {
        let history: Vec<&ReportedCommunicator> =
            by_id.iter().filter_map(|communicators| communicators.get(id).map(|listed| listed[0])).collect();
        let ranks: Vec<Ranks<'_>> = history.iter().map(|one| comparable(one)).collect();
        let communicator = listed[0];
        let mut findings = missing(history[0], communicator);
        findings.extend(failed(communicator));
        findings.extend(defects(communicator, listed.len()));
        findings.extend(mismatched(&ranks));
        findings.extend(progress(&ranks, communicator).map(|kind| (kind, None)));
        findings.extend(stragglers(&ranks));
        let conclude = |(kind, rank)| Verdict { kind, communicator: Some(id.clone()), rank };
        verdicts.extend(findings.into_iter().map(conclude));
    }
    verdicts.sort_by(|one, other| (&one.kind, &one.rank).cmp(&(&other.kind, &other.rank)));
    verdicts
}

type Finding = (VerdictKind, Option<RankPlace>);

/// For each collective, the number that a rank has launched. The number of one that is not there is unknown.
type Counters = BTreeMap<String, u64>;

/// The ranks of a report whose counters can be compared.
type Ranks<'a> = BTreeMap<u64, &'a RankReport>;

fn incomplete(problem: impl Into<String>) -> VerdictKind {
    VerdictKind::Incomplete { problem: problem.into() }
}

/// Returns the communicators of a report, all with the same identity together.
fn by_id(report: &Report) -> BTreeMap<CommunicatorId, Vec<&ReportedCommunicator>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for communicator in report.communicators.iter().filter(|one| !one.is_initialising()) {
        let ReportedCommunicator { hash, secondary_hash, size, .. } = communicator;
        let id = CommunicatorId { hash: hash.clone(), secondary_hash: secondary_hash.clone(), size: *size };
        all.entry(id).or_default().push(communicator);
    }
    all
}

/// Returns the ranks for which a report has an entry, with the number of entries.
fn entries(communicator: &ReportedCommunicator) -> BTreeMap<u64, (RankPlace, usize)> {
    let ReportedCommunicator { ranks, missing_ranks, .. } = communicator;
    let mut entries = BTreeMap::new();
    for place in ranks.iter().map(RankPlace::of).chain(missing_ranks.iter().map(RankPlace::of_missing)) {
        entries.entry(place.rank).or_insert((place, 0)).1 += 1;
    }
    entries
}

/// Returns the ranks with counters, except those that are listed twice or beyond the size.
fn comparable(communicator: &ReportedCommunicator) -> Ranks<'_> {
    let entries = entries(communicator);
    let is_comparable = |rank: &&RankReport| {
        rank.rank < communicator.size && entries[&rank.rank].1 == 1 && !rank.collective_counts.is_empty()
    };
    communicator.ranks.iter().filter(is_comparable).map(|rank| (rank.rank, rank)).collect()
}

/// Dead and unresponsive, and incomplete for a rank whose process answers without the communicator: if the first report
/// says so too, and others still use it.
fn missing(first: &ReportedCommunicator, last: &ReportedCommunicator) -> Vec<Finding> {
    let had_left = |rank: u64| first.missing_ranks.iter().any(|one| one.rank == rank && has_left(one));
    let is_running = last
        .ranks
        .iter()
        .filter_map(|rank| rank.status.as_ref())
        .any(|one| one.state() == RankState::Running);
    let kind = |missing: &MissingRank| match missing.status {
        Some(MissingStatus { considered_dead: true, .. }) => Some(VerdictKind::Dead),
        Some(MissingStatus { unresponsive: true, .. }) => Some(VerdictKind::Unresponsive),
        Some(_) => (is_running && had_left(missing.rank))
            .then(|| incomplete("its process answers, but does not have this communicator (any longer)")),
        None => Some(incomplete("the report does not say why it is missing")),
    };
    let found = last.missing_ranks.iter();
    found.filter_map(|missing| Some((kind(missing)?, Some(RankPlace::of_missing(missing))))).collect()
}

fn has_left(rank: &MissingRank) -> bool {
    rank.status.is_some_and(|status| !status.unresponsive && !status.considered_dead)
}

fn failed(communicator: &ReportedCommunicator) -> Vec<Finding> {
    let code = |rank: &RankReport| {
        let status = rank.status.as_ref()?;
        // 7 is ncclInProgress.
        let error = [status.init_state, status.async_error].into_iter().find(|code| !matches!(code, 0 | 7));
        error.map(Some).or((status.state() == RankState::Abort).then_some(None))
    };
    let ranks = communicator.ranks.iter();
    ranks
        .filter_map(|rank| Some((VerdictKind::Failed { code: code(rank)? }, Some(RankPlace::of(rank)))))
        .collect()
}

/// Incomplete: what a report lacks, or what contradicts it, about the job.
fn job_defects(report: &Report) -> Vec<String> {
    let late = match report.ras.timeouts_count {
        Some(0) => None,
        Some(count) => Some(format!("{count} time-outs of processes that were queried")),
        None => Some("the report does not say how many processes have timed out".into()),
    };
    let count = miscount("communicators", report.communicators_count, report.communicators.len());
    late.into_iter().chain(count).collect()
}

/// Incomplete: the same about a communicator, and its ranks.
fn defects(communicator: &ReportedCommunicator, listed: usize) -> Vec<Finding> {
    let ReportedCommunicator { size, ranks, missing_ranks, .. } = communicator;
    let mut findings = Vec::new();
    let mut add = |problem: Option<String>, rank: Option<&RankPlace>| {
        findings.extend(problem.map(|problem| (incomplete(problem), rank.cloned())));
    };
    let twice = |listed: usize| (listed > 1).then(|| format!("the report lists it {listed} times"));
    add(twice(listed), None);
    add(miscount("ranks that have answered", communicator.ranks_count, ranks.len()), None);
    add(miscount("missing ranks", communicator.missing_ranks_count, missing_ranks.len()), None);
    let entries = entries(communicator);
    for (rank, (place, listed)) in &entries {
        add((rank >= size).then(|| format!("ranks are below {size}")), Some(place));
        add(twice(*listed), Some(place));
    }
    let unlisted = size - entries.range(..*size).count() as u64;
    let first: Vec<u64> = (0..*size).filter(|rank| !entries.contains_key(rank)).take(NAMED).collect();
    let verb = if unlisted == 1 { "has" } else { "have" };
    add((unlisted > 0).then(|| format!("{} {verb} no entry", list(&first, unlisted))), None);
    let all = names(ranks);
    for rank in ranks {
        let (own, place) = (&rank.collective_counts, RankPlace::of(rank));
        let lacking = all.iter().find(|name| !own.contains_key(**name));
        let counters = match lacking {
            _ if own.is_empty() => Some("the report does not have its counters".into()),
            Some(name) => Some(format!("the report does not have its number of {name}")),
            None => None,
        };
        add(counters, Some(&place));
        add(rank.status.is_none().then(|| "the report does not have its state".into()), Some(&place));
    }
    findings
}

/// Returns the contradiction between the number of entries that a report states, if it does, and the number it has.
fn miscount(entries: &str, stated: Option<u64>, listed: usize) -> Option<String> {
    let stated = stated.filter(|stated| *stated != listed as u64)?;
    Some(format!("the report states {stated} {entries}, and lists {listed}"))
}

fn mismatched(history: &[Ranks<'_>]) -> Vec<Finding> {
    let found: Vec<_> = history.iter().map(mismatches).collect();
    let Some((last, ranks)) = found.last().zip(history.last()) else { return Vec::new() };
    let times = |rank: &u64| found.iter().filter(|found| found.contains_key(rank)).count();
    let usual = last.iter().filter(|(rank, _)| are_most(times(rank), found.len()));
    usual.map(|(rank, kind)| (kind.clone(), Some(RankPlace::of(ranks[rank])))).collect()
}

/// Returns the ranks that have launched more of one collective and less of another than most others. Of two prefixes of
/// one sequence of calls, neither has both.
fn mismatches(ranks: &Ranks<'_>) -> BTreeMap<u64, VerdictKind> {
    let mut votes: BTreeMap<&Counters, usize> = BTreeMap::new();
    ranks.values().for_each(|rank| *votes.entry(&rank.collective_counts).or_default() += 1);
    let common = ranks.values().rev().max_by_key(|rank| votes[&rank.collective_counts]);
    let Some(common) = common else { return BTreeMap::new() };
    let mismatch = |rank: &RankReport| {
        let [mut more, mut less] = [BTreeMap::new(), BTreeMap::new()];
        for (name, own) in &rank.collective_counts {
            let Some(usual) = common.collective_counts.get(name).filter(|usual| *usual != own) else {
                continue;
            };
            let side = if own > usual { &mut more } else { &mut less };
            side.insert(name.clone(), own.abs_diff(*usual));
        }
        let is_mismatch = !more.is_empty() && !less.is_empty();
        is_mismatch.then_some(VerdictKind::Mismatched { than: common.rank, more, less })
    };
    ranks.iter().filter_map(|(rank, report)| Some((*rank, mismatch(report)?))).collect()
}

/// Returns whether something happened in three of four reports.
fn are_most(times: usize, reports: usize) -> bool {
    4 * times >= 3 * reports
}

/// Frozen and idle. A communicator that has launched nothing, such as one for sends and receives, has no verdict.
fn progress(history: &[Ranks<'_>], communicator: &ReportedCommunicator) -> Option<VerdictKind> {
    let [first, .., last] = history else { return None };
    let before = |rank: &u64| first.get(rank).map(|before| &before.collective_counts);
    if last.iter().any(|(rank, report)| before(rank) != Some(&report.collective_counts)) {
        return None;
    }
    // A rank without some numbers cannot be compared.
    let all = names(&communicator.ranks).len();
    let sums = last.iter().filter(|(_, report)| report.collective_counts.len() == all);
    let sum = |counters: &Counters| counters.values().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let sums: BTreeMap<u64, u64> =
        sums.map(|(rank, report)| (*rank, sum(&report.collective_counts))).collect();
    let most = *sums.values().max().filter(|most| **most > 0)?;
    let behind: Vec<u64> = sums.iter().filter(|(_, sum)| **sum < most).map(|(rank, _)| *rank).collect();
    // Ranks that have left do not hold up others that are level.
    let (left, missing): (Vec<_>, Vec<_>) =
        communicator.missing_ranks.iter().partition(|rank| has_left(rank));
    let missing: Vec<u64> = missing.into_iter().map(|rank| rank.rank).collect();
    let is_complete = (sums.len() + left.len()) as u64 >= communicator.size;
    let is_level = behind.is_empty() && missing.is_empty() && is_complete;
    Some(if is_level { VerdictKind::Idle } else { VerdictKind::Frozen { behind, missing } })
}

/// Stragglers, with the numbers of the last report that shows them.
fn stragglers(history: &[Ranks<'_>]) -> Vec<Finding> {
    let mut found: BTreeMap<(u64, &str), (usize, Finding)> = BTreeMap::new();
    for (at, ranks) in history.iter().enumerate() {
        // A single report does not distinguish a rank that is behind from one that was queried before the others.
        let Some(neighbor) = history.get(if at == 0 { 1 } else { at - 1 }) else { break };
        let mismatches = mismatches(ranks);
        for name in names(ranks.values().copied()) {
            let launched = |ranks: &Ranks<'_>| -> Vec<u64> {
                let mut all: Vec<u64> =
                    ranks.values().filter_map(|rank| rank.collective_counts.get(name)).copied().collect();
                all.sort_unstable();
                all
            };
            let all = launched(ranks);
            // Of two ranks, the median is the greater one: the one behind holds the other up.
            let (median, most) = (all[all.len() / 2], all[all.len() - 1]);
            let between = launched(neighbor).last().map_or(most, |before| most.abs_diff(*before));
            let in_order = ranks.iter().filter(|(rank, _)| !mismatches.contains_key(rank));
            for (rank, report) in in_order {
                let Some(&launched) = report.collective_counts.get(name) else { continue };
                if launched < median && (median - launched).saturating_mul(4) >= between {
                    let times = found.get(&(*rank, name)).map_or(0, |(times, _)| *times);
                    let (collective, behind) = (name.to_owned(), most - launched);
                    let kind = VerdictKind::Straggler { collective, launched, behind };
                    found.insert((*rank, name), (times + 1, (kind, Some(RankPlace::of(report)))));
                }
            }
        }
    }
    let usual = found.into_values().filter(|(times, _)| are_most(*times, history.len()));
    usual.map(|(_, finding)| finding).collect()
}

/// Returns the collectives that the ranks count.
fn names<'a>(ranks: impl IntoIterator<Item = &'a RankReport>) -> BTreeSet<&'a str> {
    ranks.into_iter().flat_map(|rank| rank.collective_counts.keys()).map(String::as_str).collect()
}

impl RankPlace {
    fn of(rank: &RankReport) -> Self {
        Self { rank: rank.rank, host: rank.host.clone(), pid: rank.pid, cuda_dev: rank.cuda_dev }
    }

    fn of_missing(missing: &MissingRank) -> Self {
        let MissingRank { rank, host, pid, cuda_dev, .. } = missing;
        Self { rank: *rank, host: host.clone(), pid: *pid, cuda_dev: *cuda_dev }
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
        let Self { kind, communicator, rank } = self;
        match (communicator, rank) {
            (None, _) => write!(f, "the job {kind}"),
            (Some(CommunicatorId { hash, size, .. }), None) => {
                write!(f, "communicator {hash} of {size} ranks {kind}")
            }
            (Some(CommunicatorId { hash, size, .. }), Some(place)) => {
                write!(f, "rank {} of {size} {kind} ({place}; communicator {hash})", place.rank)
            }
        }
    }
}

/// Formats as the sentence without its subject.
impl fmt::Display for VerdictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead => f.write_str("is dead: its process cannot be reached any more"),
            Self::Unresponsive => {
                f.write_str("does not answer: its process is stopped, has ended, or cannot be reached")
            }
            Self::Failed { code: None } => f.write_str("has failed: it has aborted its communicator"),
            Self::Failed { code: Some(code) } => {
                match u32::try_from(*code).map(|code| ResultCode::from_raw(ncclResult_t(code))) {
                    Ok(code) => write!(f, "has failed: it reports {code}"),
                    Err(_) => write!(f, "has failed: it reports the unknown error {code}"),
                }
            }
            Self::Incomplete { problem } => {
                write!(f, "is reported incompletely or with a contradiction: {problem}")
            }
            Self::Mismatched { than, more, less } => {
                let [more, less] = [more, less].map(|amounts| {
                    amounts.iter().map(|(name, by)| format!("{by} {name}")).collect::<Vec<_>>().join(", ")
                });
                write!(f, "has called other collectives than rank {than}: {more} more and {less} less")
            }
            Self::Frozen { behind, missing } => {
                f.write_str("is frozen: no rank has launched a collective between the reports")?;
                for (ranks, what) in [(behind, "behind"), (missing, "missing")] {
                    let verb = if ranks.len() == 1 { "is" } else { "are" };
                    if !ranks.is_empty() {
                        write!(f, ", and {} {verb} {what}", list(ranks, ranks.len() as u64))?;
                    }
                }
                Ok(())
            }
            Self::Straggler { collective, launched, behind } => {
                let most = launched.saturating_add(*behind);
                write!(f, "is a straggler: it has launched {launched} {collective}, others up to {most}")
            }
            Self::Idle => f.write_str(
                "is idle: no rank has launched a collective between the reports, and all have launched the same",
            ),
        }
    }
}

/// The ranks that a sentence names at most.
const NAMED: usize = 8;

/// Returns the first of some ranks in words; `count` is the number of all.
fn list(ranks: &[u64], count: u64) -> String {
    let named = ranks.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match count {
        1 => format!("rank {named}"),
        _ if count > NAMED as u64 => format!("{count} ranks (the first: {named})"),
        _ => format!("ranks {named}"),
    }
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
        changed(ranks, missing, |_| ())
    }

    /// Returns the report of these ranks with a change in it.
    fn changed(ranks: &[Value], missing: &[Value], change: impl FnOnce(&mut Value)) -> Report {
        let communicator = json!({
            "hash": "0xab", "secondary_hash": "0x1:0x2", "size": ranks.len() + missing.len(),
            "ranks_count": ranks.len(), "missing_ranks_count": missing.len(), "ranks": ranks, "missing_ranks": missing,
        });
        let initialising = json!({ "hash": "0x0", "secondary_hash": "0x0:0x0", "size": 0 });
        let mut report = json!({
            "nccl_version": "2.30.7", "communicators_count": 2, "communicators": [communicator, initialising],
            "ras": { "collection_time_sec": 0.001, "timeouts_count": 0 },
        });
        change(&mut report);
        Report::parse(report.to_string().as_bytes()).unwrap()
    }

    /// Returns the report of two ranks in which these values, by their JSON pointers, are others, and those without one are
    /// left out. `#` is the communicator, and `@` its rank 1.
    fn odd(changes: &[(&str, Option<Value>)]) -> Report {
        changed(&[rank(0, 120, 3), rank(1, 120, 3)], &[], |report| {
            for (pointer, value) in changes {
                let pointer = pointer.replace('@', "#/ranks/1").replace('#', "/communicators/0");
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                let parent = report.pointer_mut(parent).unwrap();
                match value {
                    Some(value) => parent[key] = value.clone(),
                    None => drop(parent.as_object_mut().unwrap().remove(key)),
                }
            }
        })
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

    /// Returns the texts of the verdicts on ranks with these numbers of all-reduces in each report.
    fn texts_of<const RANKS: usize>(reports: &[[u64; RANKS]]) -> Vec<String> {
        texts(&reports.iter().map(|counts| level(counts)).collect::<Vec<_>>())
    }

    /// Expects one verdict, which begins like this.
    #[track_caller]
    fn assert_only<const RANKS: usize>(reports: &[[u64; RANKS]], start: &str) {
        let texts = texts_of(reports);
        assert!(texts.len() == 1 && texts[0].starts_with(start), "{reports:?}: {texts:#?}");
    }

    #[track_caller]
    fn assert_none<const RANKS: usize>(reports: &[[u64; RANKS]]) {
        assert_eq!(texts_of(reports), [""; 0], "{reports:?}");
    }

    #[test]
    fn rank_that_others_wait_for_is_a_straggler() {
        assert_eq!(
            texts_of(&[[120, 120, 117, 120], [121, 121, 118, 121]]),
            [
                "rank 2 of 4 is a straggler: it has launched 118 AllReduce, others up to 121 (process 102 on 10.0.0.1, \
              device 2; communicator 0xab)"
            ]
        );
        // Of two ranks, it is the one behind.
        assert_only(&[[120, 119], [121, 120], [122, 121]], "rank 1 of 2 is a straggler");
        assert_none(&[[120, 120], [121, 121]]);
    }

    #[test]
    fn one_report_names_no_straggler() {
        assert_none(&[[120, 120, 117, 120]]);
        assert_none(&[[5, 5, 5, 6]]);
    }

    #[test]
    fn rank_behind_in_three_of_four_reports_is_a_straggler() {
        let (slow, even) = (|at: u64| [at, at, at - 1, at], |at: u64| [at; 4]);
        assert_only(
            &[slow(10), slow(11), even(12), slow(13)],
            "rank 2 of 4 is a straggler: it has launched 12 AllReduce, others up to 13",
        );
        assert_only(
            &[slow(10), slow(11), slow(12), even(13)],
            "rank 2 of 4 is a straggler: it has launched 11 ",
        );
        assert_none(&[slow(10), even(11), even(12), slow(13)]);
        assert_none(&[slow(10), even(11)]);
    }

    #[test]
    fn ranks_apart_by_what_is_launched_during_a_report_are_sound() {
        assert_none(&[[100_000, 100_001], [150_000, 149_999], [200_003, 200_000]]);
        assert_none(&[[100_000, 99_999], [150_000, 149_999], [200_000, 199_999]]);
        assert_none(&[[100_000, 99_999], [150_000, 149_997], [200_000, 199_990], [250_000, 249_000]]);
        assert_none(&[[7_000, 7_900, 7_100], [17_900, 17_000, 17_100], [27_000, 27_100, 27_900]]);
        assert_none(&[[10, 10, 10, 11], [20, 20, 20, 21], [30, 30, 30, 31], [40, 40, 40, 41]]);
        // The job ends, or pauses, in the meantime.
        assert_none(&[[100_000, 99_999], [150_000, 149_999], [160_000; 2], [160_000; 2], [160_001; 2]]);
    }

    #[test]
    fn lag_that_stays_or_swings_while_all_move_is_none() {
        assert_none(&[[10, 10, 7], [110, 110, 107], [210, 210, 207], [310, 310, 307]]);
        assert_none(&[[10, 10, 10], [110, 110, 70], [210, 210, 200], [310, 310, 250]]);
    }

    #[test]
    fn counters_that_wrap_or_restart_are_compared() {
        assert_none(&[[1000, 1000, 1000], [3, 3, 3], [9, 9, 9]]);
        assert_none(&[[u64::MAX, u64::MAX], [0, 0], [u64::MAX, u64::MAX - 1]]);
        for reports in [
            [[1000, 1000, 1000], [1010, 0, 1010], [1020, 10, 1020]],
            [[0, u64::MAX, 0], [u64::MAX, 0, 1], [1, 2, u64::MAX]],
            [[u64::MAX, 0, u64::MAX], [u64::MAX, 0, u64::MAX], [0, 0, 0]],
        ] {
            assert!(texts_of(&reports).iter().all(|text| !text.is_empty()));
        }
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
        let one = report(&ranks, &[]);
        let texts = texts(&[one.clone(), one]);
        assert_eq!(
            texts[0],
            "rank 1 of 4 has called other collectives than rank 0: 1 Broadcast more and 1 AllReduce less (process 101 \
             on 10.0.0.1, device 1; communicator 0xab)"
        );
        assert!(texts[1].ends_with("and rank 3 is behind"), "{texts:?}");
        assert!(texts.len() == 3 && texts[2].starts_with("rank 3 of 4 is a straggler"), "{texts:?}");
    }

    #[test]
    fn missing_ranks_are_dead_unresponsive_or_gone() {
        let missing = [missing(1, true, true), missing(2, true, false), missing(3, false, false)];
        let one = report(&[rank(0, 5, 0)], &missing);
        let texts = texts(&[one.clone(), one]);
        let starts = [
            "rank 1 of 4 is dead: its process cannot be reached any more (process 101 on 10.0.0.2, device 1;",
            "rank 2 of 4 does not answer: its process is stopped, has ended, or cannot be reached (process 102",
            "rank 3 of 4 is reported incompletely or with a contradiction: its process answers, but does not have this \
             communicator (any longer) (process 103",
            "communicator 0xab of 4 ranks is frozen: no rank has launched a collective between the reports, and ranks 1, 2 \
             are missing",
        ];
        assert_eq!(texts.len(), starts.len());
        assert!(texts.iter().zip(starts).all(|(text, start)| text.starts_with(start)), "{texts:#?}");
    }

    #[test]
    fn rank_that_has_left_is_named_if_it_had_before_and_others_go_on() {
        let left = |at: u64| report(&[rank(0, at, 0), rank(1, at, 0)], &[missing(2, false, false)]);
        assert_eq!(texts(&[level(&[5, 5, 5]), left(6)]), [""; 0]);
        assert_eq!(texts(&[left(5), left(6)]).len(), 1);
        let mut last = left(6);
        last.communicators[0]
            .ranks
            .iter_mut()
            .for_each(|rank| rank.status.as_mut().unwrap().finalize_called = true);
        assert_eq!(texts(&[left(5), last]), [""; 0]);
    }

    /// Expects one verdict on a report, about this subject and with this problem.
    #[track_caller]
    fn assert_incomplete(changes: &[(&str, Option<Value>)], subject: &str, problem: &str) {
        let texts = texts(&[odd(changes)]);
        let start = format!("{subject} is reported incompletely or with a contradiction: {problem}");
        assert!(texts.len() == 1 && texts[0].starts_with(&start), "{changes:?}: {texts:#?}");
    }

    #[test]
    fn rank_without_state_counters_or_reason_is_incomplete() {
        const RANK: &str = "rank 1 of 2";
        assert_eq!(texts(&[odd(&[])]), [""; 0]);
        let cut = json!({ "init_state": 0, "async_error": 0 });
        for status in [None, Some(json!(null)), Some(json!("unknown")), Some(json!({})), Some(cut)] {
            let problem =
                "the report does not have its state (process 101 on 10.0.0.1, device 1; communicator 0xab)";
            assert_incomplete(&[("@/status", status)], RANK, problem);
        }
        for counters in [
            None,
            Some(json!(null)),
            Some(json!({})),
            Some(json!([])),
            Some(json!({ "AllReduce": -5, "Broadcast": 3 })),
            Some(json!({ "AllReduce": 18_446_744_073_709_551_616.0, "Broadcast": 3 })),
            Some(json!({ "AllReduce": null })),
        ] {
            assert_incomplete(
                &[("@/collective_counts", counters)],
                RANK,
                "the report does not have its counters (",
            );
        }
        let changes = [("@/collective_counts/Broadcast", None)];
        assert_incomplete(&changes, RANK, "the report does not have its number of Broadcast (");
        for status in [json!(null), json!({}), json!({ "unresponsive": true }), json!("dead")] {
            let mut missing = missing(1, true, false);
            missing["status"] = status;
            let changes = [
                ("#/ranks", Some(json!([rank(0, 120, 3)]))),
                ("#/ranks_count", None),
                ("#/missing_ranks", Some(json!([missing]))),
                ("#/missing_ranks_count", None),
            ];
            assert_incomplete(&changes, RANK, "the report does not say why it is missing (process 101");
        }
    }

    #[test]
    fn rank_whose_counters_are_unknown_is_no_straggler_and_holds_nobody_up() {
        let report = |at: u64| {
            let mut unknown = rank(2, 0, 0);
            unknown["collective_counts"] = json!({});
            report(&[rank(0, at, 0), rank(1, at, 0), unknown], &[])
        };
        let texts = texts(&[report(10), report(20), report(30)]);
        assert!(
            texts.len() == 1 && texts[0].starts_with("rank 2 of 3 is reported incompletely"),
            "{texts:#?}"
        );
    }

    #[test]
    fn ranks_without_an_entry_are_named() {
        let assert_unlisted = |size: u64, problem: &str| {
            let subject = format!("communicator 0xab of {size} ranks");
            assert_incomplete(&[("#/size", Some(json!(size)))], &subject, problem);
        };
        assert_unlisted(3, "rank 2 has no entry");
        assert_unlisted(10, "ranks 2, 3, 4, 5, 6, 7, 8, 9 have no entry");
        assert_unlisted(
            u64::MAX,
            "18446744073709551613 ranks (the first: 2, 3, 4, 5, 6, 7, 8, 9) have no entry",
        );
        let none = [("#/ranks", None), ("#/ranks_count", None)];
        assert_incomplete(&none, "communicator 0xab of 2 ranks", "ranks 0, 1 have no entry");
    }

    #[test]
    fn contradictions_of_a_report_are_named() {
        const COMMUNICATOR: &str = "communicator 0xab of 2 ranks";
        for (pointer, value, subjects, problem) in [
            ("@/rank", 1_804_289_383, &["rank 1804289383 of 2"][..], "ranks are below 2 (process 101"),
            ("@/rank", 2, &["rank 2 of 2"], "ranks are below 2 (process 101"),
            ("@/rank", 0, &["rank 0 of 2"], "the report lists it 2 times (process 100"),
            ("#/size", 1, &["rank 1 of 1"], "ranks are below 1 ("),
            ("#/size", 0, &["rank 0 of 0", "rank 1 of 0"], "ranks are below 0 ("),
            (
                "#/ranks_count",
                7,
                &[COMMUNICATOR],
                "the report states 7 ranks that have answered, and lists 2",
            ),
            ("#/missing_ranks_count", 5, &[COMMUNICATOR], "the report states 5 missing ranks, and lists 0"),
            ("/communicators_count", 9, &["the job"], "the report states 9 communicators, and lists 2"),
        ] {
            let mut texts = texts(&[odd(&[(pointer, Some(json!(value)))])]);
            // The rank whose number has changed.
            texts.retain(|text| !text.ends_with(": rank 1 has no entry"));
            let is_so =
                |(text, subject): (&String, &&str)| text.starts_with(*subject) && text.contains(problem);
            let all = texts.len() == subjects.len() && texts.iter().zip(subjects).all(is_so);
            assert!(all, "{pointer} {value}: {texts:#?}");
        }
        let mut twice = odd(&[("/communicators_count", Some(json!(3)))]);
        twice.communicators.push(twice.communicators[0].clone());
        let text = "communicator 0xab of 2 ranks is reported incompletely or with a contradiction: the report lists it 2 times";
        assert_eq!(texts(&[twice]), [text]);
    }

    #[test]
    fn numbers_of_a_rank_that_cannot_be_are_compared_with_none() {
        for rank in [0, 2, 1_804_289_383] {
            let at = |number: u64| {
                odd(&[("@/rank", Some(json!(rank))), ("@/collective_counts/AllReduce", Some(json!(number)))])
            };
            for reports in [[at(7), at(7), at(7)], [at(7), at(8), at(9)]] {
                let texts = texts(&reports);
                let is_of_numbers = |text: &String| text.contains("straggler") || text.contains(" behind");
                assert!(!texts.iter().any(is_of_numbers), "{rank}: {texts:#?}");
            }
        }
    }

    #[test]
    fn time_outs_of_the_last_report_are_a_problem() {
        let late = odd(&[("/ras/timeouts_count", Some(json!(2)))]);
        assert!(texts(&[late, odd(&[])]).iter().all(|text| !text.contains("time-outs")));
        let late = [("/ras/timeouts_count", Some(json!(2)))];
        assert_incomplete(&late, "the job", "2 time-outs of processes that were queried");
        for absent in
            [("/ras", None), ("/ras/timeouts_count", None), ("/ras/timeouts_count", Some(json!(null)))]
        {
            assert_incomplete(
                &[absent],
                "the job",
                "the report does not say how many processes have timed out",
            );
        }
    }

    #[test]
    fn mismatch_that_is_over_is_none() {
        let mixed = |at: u64| report(&[rank(0, at, 3), rank(1, at - 1, 4), rank(2, at, 3)], &[]);
        let same = report(&[rank(0, 8, 4), rank(1, 8, 4), rank(2, 8, 4)], &[]);
        assert_eq!(texts(&[mixed(5), mixed(6), mixed(7), same]), [""; 0]);
    }

    #[test]
    fn failure_and_death_count_if_the_last_report_has_them() {
        let sound = level(&[5, 5, 5]);
        let dead = report(&[rank(0, 5, 0), rank(1, 5, 0)], &[missing(2, true, true)]);
        assert!(texts(&[sound.clone(), sound.clone(), dead.clone()])[0].starts_with("rank 2 of 3 is dead"));
        assert!(texts(&[dead, sound]).iter().all(|text| !text.contains("is dead")));
    }

    #[test]
    fn errors_and_aborts_of_ranks_are_failures() {
        let mut ranks = [rank(0, 5, 0), rank(1, 5, 0), rank(2, 5, 0)];
        ranks[1]["status"]["async_error"] = json!(6);
        ranks[2]["status"]["abort_flag"] = json!(true);
        let texts = texts(&[report(&ranks, &[])]);
        assert_eq!(texts.len(), 2);
        assert!(
            texts[0].starts_with("rank 2 of 3 has failed: it has aborted its communicator (process 102"),
            "{texts:?}"
        );
        assert!(texts[1].starts_with("rank 1 of 3 has failed: it reports ncclRemoteError"), "{texts:?}");
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

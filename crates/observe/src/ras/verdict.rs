//! Conclusions from the reports of a job, in sentences. Each kind of verdict has one function.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::report::{
    CommunicatorId, MissingRank, MissingStatus, RankReport, RankState, Report, ReportedCommunicator,
};
use libnccl::error::ResultCode;
use libnccl::sys::ncclResult_t;

/// A conclusion about a job, one of its communicators, or a rank of a communicator.
///
/// [`Display`](fmt::Display) writes one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The conclusion.
    #[serde(flatten)]
    pub kind: VerdictKind,
    /// The communicator; `None` if the verdict is about the whole job.
    pub communicator: Option<CommunicatorId>,
    /// The rank; `None` if the verdict is about a whole communicator or the whole job.
    pub rank: Option<RankPlace>,
}

/// A rank, and where it runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub struct RankPlace {
    /// The number of the rank in its communicator.
    pub rank: u64,
    /// The IP address of the rank's host, or `unknown`.
    pub host: String,
    /// The process id; -1 if it is unknown.
    pub pid: i64,
    /// The CUDA device; -1 if it is unknown.
    pub cuda_dev: i64,
}

/// A kind of conclusion. Kinds are ordered by severity, the most severe first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
#[non_exhaustive]
pub enum VerdictKind {
    /// The rank's process has not responded for a minute or, on the CPU backend, has exited. It may have exited normally.
    Dead,
    /// The rank's process does not respond: it is stopped, has exited, or cannot be reached.
    Unresponsive,
    /// The rank's initialization or one of its operations has failed, or the rank has aborted its communicator.
    Failed {
        /// The error code, a `ncclResult_t`; `None` if the rank has aborted its communicator.
        code: Option<i64>,
    },
    /// The report about the job, the communicator or the rank is incomplete or contradictory. This kind also covers a rank whose
    /// process no longer has the communicator, and a rank that is still being initialized while others are ready.
    Incomplete {
        /// The missing data, or the contradiction.
        problem: String,
    },
    /// Compared with a typical rank, the rank has launched one collective more often and another one less often.
    Mismatched {
        /// The typical rank: its numbers of launches are the most common ones.
        than: u64,
        /// The collectives that the rank has launched more often than the typical rank, and how much more often.
        more: BTreeMap<String, u64>,
        /// The collectives that the rank has launched less often than the typical rank, and how much less often.
        less: BTreeMap<String, u64>,
    },
    /// No rank launched a collective between the first report and the last, and some ranks are behind or missing.
    Frozen {
        /// The ranks that have launched fewer collectives than the rank with the most launches.
        behind: Vec<u64>,
        /// The ranks that do not respond.
        missing: Vec<u64>,
    },
    /// The rank has launched a collective less often than most other ranks. [`verdicts`] gives the exact rule.
    Straggler {
        /// The name of the collective.
        collective: String,
        /// The number of times that the rank has launched the collective.
        launched: u64,
        /// The highest number of launches on any rank, minus `launched`.
        behind: u64,
    },
    /// No rank launched a collective between the first report and the last, and all ranks have launched the same number of
    /// collectives. This alone is not a problem: the program may be computing. RAS cannot distinguish a computing program from
    /// GPUs that hang in a launched collective, or from ranks that wait in sends and receives.
    Idle,
}

impl Verdict {
    /// Returns `true` unless the kind is [`VerdictKind::Idle`].
    #[must_use]
    pub fn is_problem(&self) -> bool {
        self.kind != VerdictKind::Idle
    }
}

/// Draws conclusions from the reports of one job. `reports` must be in chronological order. The returned verdicts are sorted by
/// severity, the most severe first.
///
/// | verdict | rule |
/// |---|---|
/// | dead, unresponsive, failed, incomplete | the last report shows it; a rank that is still being initialized or no longer has the communicator is incomplete only if the first report shows this, too |
/// | mismatched | the last report and at least three quarters of all reports show it |
/// | straggler | there are at least two reports, and at least three quarters of them show the rank as behind; half of them suffice if the rank's counters are equal in the first and the last report |
/// | frozen, idle | there are at least two reports, and the counters of the first and the last report are equal, but not all 0 |
///
/// A report shows a rank as behind if the rank's number of launches of a collective is below the median. The difference must be
/// at least a quarter of the collective's launches since the previous report. In the first report, it must be at least a quarter
/// of the launches until the next report.
///
/// The ranks are not queried at the same instant. Even in a healthy job, the ranks' counters differ by the number of collectives
/// launched during the query. With short collectives, the difference can be thousands. A query should therefore take less than a
/// quarter of the time between two reports. A few reports within a second are enough to find stragglers. In such a short time, a
/// job without progress may just be computing. To detect a frozen job, leave more time between the first and the last report.
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
        findings.extend(unready(history[0], communicator));
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

/// The number of launches of each collective on one rank. A missing number is unknown.
type Counters = BTreeMap<String, u64>;

/// The ranks of a report whose counters can be compared.
type Ranks<'a> = BTreeMap<u64, &'a RankReport>;

fn incomplete(problem: impl Into<String>) -> VerdictKind {
    VerdictKind::Incomplete { problem: problem.into() }
}

/// Groups the initialized communicators of a report by identity.
fn by_id(report: &Report) -> BTreeMap<CommunicatorId, Vec<&ReportedCommunicator>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for communicator in report.communicators.iter().filter(|one| !one.is_initializing()) {
        all.entry(communicator.id()).or_default().push(communicator);
    }
    all
}

/// Returns the place and the number of entries of each rank that a report lists.
fn entries(communicator: &ReportedCommunicator) -> BTreeMap<u64, (RankPlace, usize)> {
    let ReportedCommunicator { ranks, missing_ranks, .. } = communicator;
    let mut entries = BTreeMap::new();
    for place in ranks.iter().map(RankPlace::of).chain(missing_ranks.iter().map(RankPlace::of_missing)) {
        entries.entry(place.rank).or_insert((place, 0)).1 += 1;
    }
    entries
}

/// Returns the ranks with counters, except ranks that are listed twice or are not below the size.
fn comparable(communicator: &ReportedCommunicator) -> Ranks<'_> {
    let entries = entries(communicator);
    let is_comparable = |rank: &&RankReport| {
        rank.rank < communicator.size && entries[&rank.rank].1 == 1 && !rank.collective_counts.is_empty()
    };
    communicator.ranks.iter().filter(is_comparable).map(|rank| (rank.rank, rank)).collect()
}

/// Finds dead, unresponsive and incomplete ranks. A rank whose process responds but lacks the communicator is incomplete only if
/// the first report shows the same and another rank still uses the communicator.
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
            .then(|| incomplete("its process responds, but does not have this communicator (any longer)")),
        None => Some(incomplete("the report does not say why it is missing")),
    };
    let found = last.missing_ranks.iter();
    found.filter_map(|missing| Some((kind(missing)?, Some(RankPlace::of_missing(missing))))).collect()
}

/// Finds ranks that the first report and the last show in initialization, while others are ready.
fn unready(first: &ReportedCommunicator, last: &ReportedCommunicator) -> Vec<Finding> {
    let is_in = |rank: &RankReport, state| rank.status.as_ref().is_some_and(|status| status.state() == state);
    let was_unready =
        |rank: u64| first.ranks.iter().any(|one| one.rank == rank && is_in(one, RankState::Init));
    if !last.ranks.iter().any(|rank| is_in(rank, RankState::Running)) {
        return Vec::new();
    }
    let unready = last.ranks.iter().filter(|rank| is_in(rank, RankState::Init) && was_unready(rank.rank));
    unready
        .map(|rank| {
            (incomplete("it is still in its initialization, and others are ready"), Some(RankPlace::of(rank)))
        })
        .collect()
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

/// Finds missing or contradictory data on the job.
fn job_defects(report: &Report) -> Vec<String> {
    let late = match report.ras.timeouts_count {
        Some(0) => None,
        Some(count) => Some(format!("{count} time-outs of processes that were queried")),
        None => Some("the report does not say how many processes have timed out".into()),
    };
    let count = miscount("communicators", report.communicators_count, report.communicators.len());
    late.into_iter().chain(count).collect()
}

/// Finds missing or contradictory data on a communicator and its ranks.
fn defects(communicator: &ReportedCommunicator, listed: usize) -> Vec<Finding> {
    let ReportedCommunicator { size, ranks, missing_ranks, .. } = communicator;
    let mut findings = Vec::new();
    let mut add = |problem: Option<String>, rank: Option<&RankPlace>| {
        findings.extend(problem.map(|problem| (incomplete(problem), rank.cloned())));
    };
    let twice = |listed: usize| (listed > 1).then(|| format!("the report lists it {listed} times"));
    add(twice(listed), None);
    add(miscount("ranks that have responded", communicator.ranks_count, ranks.len()), None);
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

/// Returns an error text if the number of entries that a report states differs from the number that it lists.
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

/// Returns the ranks that have launched more of one collective and fewer of another than most ranks. Ranks at different points of
/// one sequence of calls never differ in both directions.
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

/// Returns whether `times` is at least three quarters of `reports`.
fn are_most(times: usize, reports: usize) -> bool {
    4 * times >= 3 * reports
}

/// Returns frozen or idle, or `None` if there is progress or if no collective was ever launched.
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
    // Ranks that have exited do not hold up others with equal counters.
    let (left, missing): (Vec<_>, Vec<_>) =
        communicator.missing_ranks.iter().partition(|rank| has_left(rank));
    let missing: Vec<u64> = missing.into_iter().map(|rank| rank.rank).collect();
    let is_complete = (sums.len() + left.len()) as u64 >= communicator.size;
    let is_level = behind.is_empty() && missing.is_empty() && is_complete;
    Some(if is_level { VerdictKind::Idle } else { VerdictKind::Frozen { behind, missing } })
}

/// Finds stragglers. The numbers of each are from the last report that shows it.
fn stragglers(history: &[Ranks<'_>]) -> Vec<Finding> {
    let mut found: BTreeMap<(u64, &str), (usize, Finding)> = BTreeMap::new();
    for (at, ranks) in history.iter().enumerate() {
        // A single report does not distinguish a rank that is behind from one that was queried before the others.
        let Some(neighbor) = history.get(if at == 0 { 1 } else { at - 1 }) else { break };
        // Ranks that have called other collectives are not behind, and are not counted in the median.
        let mismatches = mismatches(ranks);
        let ranks: Ranks<'_> = ranks
            .iter()
            .filter(|(rank, _)| !mismatches.contains_key(rank))
            .map(|(rank, one)| (*rank, *one))
            .collect();
        for name in names(ranks.values().copied()) {
            let launched = |ranks: &Ranks<'_>| -> Vec<u64> {
                let mut all: Vec<u64> =
                    ranks.values().filter_map(|rank| rank.collective_counts.get(name)).copied().collect();
                all.sort_unstable();
                all
            };
            let all = launched(&ranks);
            // With two ranks, the median is the greater number: the rank that is behind holds up the other.
            let (median, most) = (all[all.len() / 2], all[all.len() - 1]);
            let between = launched(neighbor).last().map_or(most, |before| most.abs_diff(*before));
            for (rank, report) in &ranks {
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
    let counters = |ranks: Option<&Ranks<'_>>, rank| Some(ranks?.get(&rank)?.collective_counts.clone());
    let has_stopped = |rank| counters(history.first(), rank) == counters(history.last(), rank);
    let usual = found.into_iter().filter(|((rank, _), (times, _))| {
        are_most(*times, history.len()) || (has_stopped(*rank) && 2 * times >= history.len())
    });
    usual.map(|(_, (_, finding))| finding).collect()
}

/// Returns the names of the collectives in the ranks' counters.
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

/// Writes the rank's process and device, such as `process 71 on 10.0.0.1, device 3`.
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
            (Some(id), None) => write!(f, "communicator {id} of {} ranks {kind}", id.size),
            (Some(id), Some(place)) => {
                write!(f, "rank {} of {} {kind} ({place}; communicator {id})", place.rank, id.size)
            }
        }
    }
}

/// Writes the conclusion without a subject, such as `is dead: its process cannot be reached any more`.
impl fmt::Display for VerdictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead => f.write_str("is dead: its process cannot be reached any more"),
            Self::Unresponsive => {
                f.write_str("does not respond: its process is stopped, has ended, or cannot be reached")
            }
            Self::Failed { code: None } => f.write_str("has failed: it has aborted its communicator"),
            Self::Failed { code: Some(code) } => {
                match u32::try_from(*code).map(|code| ResultCode::from_raw(ncclResult_t(code))) {
                    Ok(code) => write!(f, "has failed: it reports {code}"),
                    Err(_) => write!(f, "has failed: it reports the unknown error {code}"),
                }
            }
            Self::Incomplete { problem } => {
                write!(f, "cannot be judged: {problem}")
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

/// The maximum number of ranks that a sentence names.
const NAMED: usize = 8;

/// Formats the first ranks of a list for a sentence; `count` is the number of all.
fn list(ranks: &[u64], count: u64) -> String {
    let named = ranks.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match count {
        1 => format!("rank {named}"),
        _ if count > NAMED as u64 => format!("{count} ranks (the first: {named})"),
        _ => format!("ranks {named}"),
    }
}

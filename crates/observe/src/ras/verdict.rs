//! Conclusions from the reports of a job, in sentences.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::counters::{Counters, compare};
use super::report::{MissingRank, MissingStatus, RankReport, RankState, Report, ReportedCommunicator};
use libnccl::error::ResultCode;
use libnccl::sys::ncclResult_t;

/// The ranks without an entry in a report that a verdict has at most.
const UNACCOUNTED: usize = 32;

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
    /// The rank's process has not answered for a minute. It may also have ended as it should.
    Dead,
    /// The rank's process does not answer: it is stopped, has ended, or cannot be reached.
    Unresponsive,
    /// The report does not account for some ranks: it says neither that they have answered nor that they are missing.
    Unaccounted {
        /// The first of them, 32 at most.
        ranks: Vec<u64>,
        /// The number of the others.
        more_ranks: u64,
    },
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
        /// The ranks that are listed as missing, and have not left.
        missing: Vec<u64>,
    },
    /// The rank has launched less than most others, by more than the time that a report takes explains.
    Straggler {
        /// The collective.
        collective: String,
        /// The number of it that the rank has launched.
        launched: u64,
        /// The number that the rank with the most has launched beyond that.
        behind: u64,
    },
    /// The rank has launched more than most others, by more than the time that a report takes explains, and none has
    /// launched less.
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
    /// The report says what cannot be.
    Contradictory {
        /// The contradiction.
        problem: String,
    },
    /// The report lacks something, of which nothing is known for that reason.
    Incomplete {
        /// What is lacking.
        problem: String,
    },
    /// Nothing was launched between the first report and the last, and all ranks have launched the same. No problem by
    /// itself: the program may do something else. RAS cannot tell that from GPUs that hang in what was launched.
    Idle,
}

impl VerdictKind {
    /// Returns `true` for what a report shows for certain, and `false` for what may be true for a moment in a sound job:
    /// the counters of a report are not taken at one instant.
    fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::Dead
                | Self::Unresponsive
                | Self::Unaccounted { .. }
                | Self::Failed { .. }
                | Self::Aborted
                | Self::Contradictory { .. }
                | Self::Incomplete { .. }
        )
    }

    /// Returns `true` for what comes and goes from report to report, and is a problem for all that.
    fn is_swinging(&self) -> bool {
        matches!(self, Self::Straggler { .. } | Self::Ahead { .. })
    }

    /// Returns what is the same in two verdicts about the same thing.
    fn subject(&self) -> (u8, Option<&str>) {
        match self {
            Self::Dead => (0, None),
            Self::Unresponsive => (1, None),
            Self::Unaccounted { .. } => (2, None),
            Self::Failed { .. } => (3, None),
            Self::Aborted => (4, None),
            Self::Mismatched { .. } => (5, None),
            Self::Frozen { .. } => (6, None),
            Self::Straggler { collective, .. } => (7, Some(collective)),
            Self::Ahead { collective, .. } => (8, Some(collective)),
            Self::Left => (9, None),
            Self::OtherState { .. } => (10, None),
            Self::Contradictory { problem } => (11, Some(problem)),
            Self::Incomplete { problem } => (12, Some(problem)),
            Self::Idle => (13, None),
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
/// One report shows which ranks are dead, do not answer, failed, aborted, left, are in another state or called other
/// collectives. The last three may be so for a moment in a sound job: of several reports, three of four have to show it, and
/// the last. What a report does not say is a verdict, too, as is what cannot be: a report that is incomplete shows no sound job.
/// Numbers are those of the last report.
///
/// Several reports show which ranks are behind or ahead, and whether the communicator is frozen or idle. A report does not
/// ask all ranks at one instant. Those of a sound job seem apart by what they launch meanwhile, which may be thousands of
/// short collectives. What counts is a difference of at least a quarter of what is launched from one report to the next; so
/// let a report take less than a quarter of that time. A rank is a straggler if
///
/// - three of four reports show it behind by that much, as the others wait for it each time;
/// - or it has launched nothing since the first report, and half of the reports show it behind;
/// - or each of three reports or more shows it further behind than the one before, in all by that much.
///
/// Some reports within a second are enough. Frozen for such a short time may be a long computation: the time between the
/// first and the last report is the measure.
#[must_use]
pub fn verdicts(reports: &[Report]) -> Vec<Verdict> {
    let mut seen: BTreeMap<CommunicatorId, Vec<&ReportedCommunicator>> = BTreeMap::new();
    for (id, listed) in reports.iter().flat_map(by_id) {
        seen.entry(id).or_default().extend(listed.first());
    }
    let mut verdicts = reports.last().map(examine_report).unwrap_or_default();
    for (id, reported) in &seen {
        let conclude = |(kind, rank)| Verdict { kind, communicator: Some(id.clone()), rank };
        let comparable: Vec<_> = reported.iter().map(|one| without_contradictions(one)).collect();
        let comparable: Vec<&ReportedCommunicator> = comparable.iter().map(|one| &**one).collect();
        let neighbor = |at: usize| comparable.get(if at == 0 { 1 } else { at - 1 }).copied();
        let both = reported.iter().zip(&comparable).enumerate();
        let findings = both.map(|(at, (reported, comparable))| {
            let mut findings = examine(reported);
            findings.extend(compare_counters(&comparable.ranks, neighbor(at)));
            findings
        });
        let findings: Vec<Vec<Finding>> = findings.collect();
        let combined = combine(&findings, &falling_behind(&comparable));
        verdicts.extend(with_last_numbers(combined, &comparable).into_iter().map(conclude));
        if let [first, .., last] = comparable[..] {
            verdicts.extend(progress(first, last).map(|kind| conclude((kind, None))));
        }
    }
    verdicts.sort_by(|one, other| (&one.kind, &one.rank).cmp(&(&other.kind, &other.rank)));
    verdicts
}

type Finding = (VerdictKind, Option<RankPlace>);

/// Returns the communicators of a report, all of one identity together.
fn by_id(report: &Report) -> BTreeMap<CommunicatorId, Vec<&ReportedCommunicator>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for communicator in report.communicators.iter().filter(|one| !one.is_initialising()) {
        all.entry(CommunicatorId::of(communicator)).or_default().push(communicator);
    }
    all
}

/// Returns a communicator without the ranks that are listed twice or beyond its size: whose numbers theirs are is not known.
fn without_contradictions(communicator: &ReportedCommunicator) -> Cow<'_, ReportedCommunicator> {
    let mut listed: BTreeMap<u64, usize> = BTreeMap::new();
    let missing = communicator.missing_ranks.iter().map(|rank| rank.rank);
    for rank in communicator.ranks.iter().map(|rank| rank.rank).chain(missing) {
        *listed.entry(rank).or_default() += 1;
    }
    let is_sound = |rank: &RankReport| rank.rank < communicator.size && listed.get(&rank.rank) == Some(&1);
    if communicator.ranks.iter().all(is_sound) {
        return Cow::Borrowed(communicator);
    }
    let mut sound = communicator.clone();
    sound.ranks.retain(is_sound);
    Cow::Owned(sound)
}

/// Returns what is wrong with a report itself.
fn examine_report(report: &Report) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut add = |kind, communicator| verdicts.push(Verdict { kind, communicator, rank: None });
    let listed = report.communicators.len();
    if let Some(problem) = miscount("communicators", report.communicators_count, listed) {
        add(VerdictKind::Contradictory { problem }, None);
    }
    for (id, listed) in by_id(report).into_iter().filter(|(_, listed)| listed.len() > 1) {
        add(VerdictKind::Contradictory { problem: times(listed.len()) }, Some(id));
    }
    let late = match report.ras.timeouts_count {
        Some(0) => return verdicts,
        Some(count) => format!("{count} time-outs of processes that were asked"),
        None => "the report does not say how many processes have timed out".into(),
    };
    add(VerdictKind::Incomplete { problem: late }, None);
    verdicts
}

/// Returns the contradiction between the number of entries that a report states, if it does, and that of those it has.
fn miscount(entries: &str, stated: Option<u64>, listed: usize) -> Option<String> {
    let stated = stated.filter(|stated| *stated != listed as u64)?;
    Some(format!("the report states {stated} {entries}, and lists {listed}"))
}

fn times(listed: usize) -> String {
    format!("the report lists it {listed} times")
}

/// Returns the latest form of the findings that count: of the lasting ones, those of the last report; of the others, those
/// of three of four reports, the last among them unless they swing, and those that `trends` has.
fn combine(findings: &[Vec<Finding>], trends: &[Finding]) -> Vec<Finding> {
    let Some((latest, _)) = findings.split_last() else { return Vec::new() };
    // The number of reports that have it, the last of them, and its form there.
    let mut counted: BTreeMap<_, (usize, usize, &Finding)> = BTreeMap::new();
    for (at, of_report) in findings.iter().enumerate() {
        for finding in of_report.iter().filter(|(kind, _)| !kind.is_lasting()) {
            let (kind, rank) = finding;
            let count = counted.get(&(kind.subject(), rank)).map_or(0, |(count, ..)| *count);
            counted.insert((kind.subject(), rank), (count + 1, at, finding));
        }
    }
    counted.retain(|_, (count, at, (kind, _))| {
        4 * *count >= 3 * findings.len() && (*at + 1 == findings.len() || kind.is_swinging())
    });
    for finding in trends {
        let (kind, rank) = finding;
        counted.entry((kind.subject(), rank)).or_insert((0, 0, finding));
    }
    let lasting = latest.iter().filter(|(kind, _)| kind.is_lasting());
    lasting.chain(counted.into_values().map(|(.., finding)| finding)).cloned().collect()
}

/// Returns the findings with the numbers of the last report, which may be another than the one that they are of.
fn with_last_numbers(mut findings: Vec<Finding>, reported: &[&ReportedCommunicator]) -> Vec<Finding> {
    let Some(last) = reported.last() else { return findings };
    let counters = by_rank(last);
    let mut levels: BTreeMap<String, Level> = BTreeMap::new();
    for (kind, rank) in &mut findings {
        let (VerdictKind::Straggler { collective, .. } | VerdictKind::Ahead { collective, .. }) = kind else {
            continue;
        };
        let own = rank.as_ref().and_then(|rank| launched(counters.get(&rank.rank)?, collective));
        let Some(own) = own else { continue };
        let level = levels.entry(collective.clone()).or_insert_with_key(|name| Level::of(&last.ranks, name));
        match kind {
            VerdictKind::Straggler { launched, behind, .. } => {
                (*launched, *behind) = (own, level.most.saturating_sub(own));
            }
            VerdictKind::Ahead { launched, ahead, .. } => {
                (*launched, *ahead) = (own, own.saturating_sub(level.median));
            }
            _ => {}
        }
    }
    findings
}

/// Returns what one report says about a communicator, but for what its numbers say.
fn examine(communicator: &ReportedCommunicator) -> Vec<Finding> {
    let mut findings = examine_entries(communicator);
    let incomplete = |problem: &str| VerdictKind::Incomplete { problem: problem.into() };
    for missing in &communicator.missing_ranks {
        let kind = match missing.status {
            Some(MissingStatus { considered_dead: true, .. }) => VerdictKind::Dead,
            Some(MissingStatus { unresponsive: true, .. }) => VerdictKind::Unresponsive,
            Some(_) => VerdictKind::Left,
            None => incomplete("the report does not say why it is missing"),
        };
        findings.push((kind, Some(RankPlace::of_missing(missing))));
    }
    let ranks = &communicator.ranks;
    let common = most_common(ranks.iter().filter_map(|rank| Some(rank.status.as_ref()?.state())));
    let all = names(ranks);
    for rank in ranks {
        let mut add = |kind| findings.push((kind, Some(RankPlace::of(rank))));
        let own = &rank.collective_counts;
        if own.is_empty() {
            add(incomplete("the report has no numbers of its collectives"));
        } else if let Some(name) = all.iter().find(|name| own.len() < all.len() && !own.contains_key(**name))
        {
            add(incomplete(&format!("the report has no number of its {name}, as of others")));
        }
        let Some(status) = &rank.status else {
            add(incomplete("the report does not have its state"));
            continue;
        };
        // 7 is ncclInProgress.
        let errors =
            [status.init_state, status.async_error].into_iter().filter(|code| !matches!(code, 0 | 7));
        errors.take(1).for_each(|code| add(VerdictKind::Failed { code }));
        match (status.state(), common) {
            (RankState::Abort, _) => add(VerdictKind::Aborted),
            (state, Some(others)) if state != others => add(VerdictKind::OtherState { state, others }),
            _ => {}
        }
    }
    findings
}

/// Returns the ranks for which a report has no entry, more than one, or one that cannot be.
fn examine_entries(communicator: &ReportedCommunicator) -> Vec<Finding> {
    let ReportedCommunicator { size, ranks, missing_ranks, .. } = communicator;
    let contradictory = |problem| VerdictKind::Contradictory { problem };
    let answered = miscount("ranks that have answered", communicator.ranks_count, ranks.len());
    let missing = miscount("missing ranks", communicator.missing_ranks_count, missing_ranks.len());
    let mut findings: Vec<Finding> =
        answered.into_iter().chain(missing).map(|problem| (contradictory(problem), None)).collect();
    let mut places: BTreeMap<u64, (RankPlace, usize)> = BTreeMap::new();
    for place in ranks.iter().map(RankPlace::of).chain(missing_ranks.iter().map(RankPlace::of_missing)) {
        places.entry(place.rank).or_insert((place, 0)).1 += 1;
    }
    for (rank, (place, listed)) in &places {
        let is_beyond = (rank >= size).then(|| format!("ranks are below {size}"));
        let is_repeated = (*listed > 1).then(|| times(*listed));
        let problems = is_beyond.into_iter().chain(is_repeated);
        findings.extend(problems.map(|problem| (contradictory(problem), Some(place.clone()))));
    }
    let unaccounted = size - places.range(..*size).count() as u64;
    if unaccounted > 0 {
        let ranks: Vec<u64> =
            (0..*size).filter(|rank| !places.contains_key(rank)).take(UNACCOUNTED).collect();
        let more_ranks = unaccounted - ranks.len() as u64;
        findings.push((VerdictKind::Unaccounted { ranks, more_ranks }, None));
    }
    findings
}

/// Returns the ranks whose counters differ from those of most others. `neighbor` is from the report before or, of the first
/// one, after it.
fn compare_counters(ranks: &[RankReport], neighbor: Option<&ReportedCommunicator>) -> Vec<Finding> {
    let (in_order, mut findings) = in_order(ranks);
    // A single report cannot tell a rank that is behind from one that was asked before the others.
    let Some(neighbor) = neighbor else { return findings };
    for name in names(in_order.iter().copied()) {
        let Level { least, median, most } = Level::of(in_order.iter().copied(), name);
        let between = Level::of(&neighbor.ranks, name).most.abs_diff(most);
        let is_behind = |launched: u64| launched < median && exceeds_skew(median - launched, between);
        for rank in &in_order {
            let Some(launched) = launched(&rank.collective_counts, name) else { continue };
            let kind = if is_behind(launched) {
                straggler(name, launched, most)
            } else if launched > median && exceeds_skew(launched - median, between) && !is_behind(least) {
                VerdictKind::Ahead { collective: name.clone(), launched, ahead: launched - median }
            } else {
                continue;
            };
            findings.push((kind, Some(RankPlace::of(rank))));
        }
    }
    findings
}

/// Returns the ranks that made the calls of most others, or some more or less of them, and findings on those that made other
/// calls.
fn in_order(ranks: &[RankReport]) -> (Vec<&RankReport>, Vec<Finding>) {
    let (mut in_order, mut findings) = (Vec::new(), Vec::new());
    let counters = ranks.iter().map(|rank| &rank.collective_counts).filter(|counters| !counters.is_empty());
    let Some(common) = most_common(counters) else { return (in_order, findings) };
    let than = ranks.iter().find(|rank| rank.collective_counts == *common).map_or(0, |rank| rank.rank);
    for rank in ranks {
        let [more, less] = compare(&rank.collective_counts, common);
        if more.is_empty() || less.is_empty() {
            in_order.push(rank);
        } else {
            findings.push((VerdictKind::Mismatched { than, more, less }, Some(RankPlace::of(rank))));
        }
    }
    (in_order, findings)
}

/// Returns the stragglers that show from report to report: those that launch nothing while others do, and those that are
/// further behind each time.
fn falling_behind(reported: &[&ReportedCommunicator]) -> Vec<Finding> {
    let Some(last) = reported.last() else { return Vec::new() };
    let counters: Vec<BTreeMap<u64, &Counters>> = reported.iter().map(|one| by_rank(one)).collect();
    let (ranks, _) = in_order(&last.ranks);
    let mut findings = Vec::new();
    for name in names(ranks.iter().copied()) {
        let levels: Vec<Level> = reported.iter().map(|one| Level::of(&one.ranks, name)).collect();
        let [.., before, latest] = levels[..] else { break };
        let between = before.most.abs_diff(latest.most);
        for rank in &ranks {
            let Some(launched_last) = launched(&rank.collective_counts, name) else { continue };
            if launched_last >= latest.median {
                continue;
            }
            let lag = |(of, level): (&BTreeMap<u64, &Counters>, &Level)| {
                Some(level.median.saturating_sub(launched(of.get(&rank.rank)?, name)?))
            };
            // None for a rank that was missing meanwhile, or did not say.
            let lags: Option<Vec<u64>> = counters.iter().zip(&levels).map(lag).collect();
            let Some(lags) = lags else { continue };
            let [first, last] =
                [counters.first(), counters.last()].map(|of| of.and_then(|of| of.get(&rank.rank)));
            let stands = first == last;
            if (stands && is_left_behind(&lags)) || grows(&lags, between) {
                findings.push((straggler(name, launched_last, latest.most), Some(RankPlace::of(rank))));
            }
        }
    }
    findings
}

/// Returns whether a rank that launches nothing is behind in half of the reports. In the last one only, by one, a sound
/// rank may be behind for a moment.
fn is_left_behind(lags: &[u64]) -> bool {
    let behind = lags.iter().filter(|lag| **lag > 0).count();
    2 * behind >= lags.len() && lags.last().is_some_and(|last| *last > 1 || (*last > 0 && behind > 1))
}

/// Returns whether a lag grows from each report to the next, and so far that the skew of the last one does not explain it.
fn grows(lags: &[u64], between: u64) -> bool {
    let [first, _, .., last] = lags else { return false };
    lags.is_sorted_by(|one, next| one < next) && exceeds_skew(last - first, between)
}

/// Returns whether a difference in one report is more than its skew: a report takes less than a quarter of the time in
/// which `between` are launched, from one report to the next.
fn exceeds_skew(difference: u64, between: u64) -> bool {
    difference.saturating_mul(4) >= between
}

/// The least, the median and the greatest number of a collective that ranks have launched.
#[derive(Debug, Clone, Copy)]
struct Level {
    least: u64,
    median: u64,
    most: u64,
}

impl Level {
    fn of<'a>(ranks: impl IntoIterator<Item = &'a RankReport>, collective: &str) -> Self {
        let ranks = ranks.into_iter();
        let mut sorted: Vec<u64> =
            ranks.filter_map(|rank| launched(&rank.collective_counts, collective)).collect();
        sorted.sort_unstable();
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0);
        // Of two ranks, the median is the greater one: one that is behind holds the other up.
        Self { least: at(0), median: at(sorted.len() / 2), most: at(sorted.len().saturating_sub(1)) }
    }
}

fn launched(counters: &Counters, collective: &str) -> Option<u64> {
    counters.get(collective).copied()
}

fn straggler(collective: &str, launched: u64, most: u64) -> VerdictKind {
    let behind = most.saturating_sub(launched);
    VerdictKind::Straggler { collective: collective.to_owned(), launched, behind }
}

/// Returns the collectives that the ranks count.
fn names<'a>(ranks: impl IntoIterator<Item = &'a RankReport>) -> BTreeSet<&'a String> {
    ranks.into_iter().flat_map(|rank| rank.collective_counts.keys()).collect()
}

fn by_rank(communicator: &ReportedCommunicator) -> BTreeMap<u64, &Counters> {
    communicator.ranks.iter().map(|rank| (rank.rank, &rank.collective_counts)).collect()
}

/// Returns the verdict on a communicator whose counters are the same in two reports. One that has launched nothing, such as
/// one for sends and receives, says nothing.
fn progress(first: &ReportedCommunicator, last: &ReportedCommunicator) -> Option<VerdictKind> {
    let before = by_rank(first);
    let has_moved =
        |rank: &RankReport| before.get(&rank.rank).is_none_or(|before| **before != rank.collective_counts);
    if last.ranks.is_empty() || last.ranks.iter().any(has_moved) {
        return None;
    }
    let sum = |counters: &Counters| counters.values().fold(0_u64, |sum, count| sum.saturating_add(*count));
    // What has not been said cannot be compared.
    let whole = names(&last.ranks).len();
    let (known, unknown): (Vec<_>, Vec<_>) =
        last.ranks.iter().partition(|rank| rank.collective_counts.len() == whole);
    let most = known.iter().map(|rank| sum(&rank.collective_counts)).max().filter(|most| *most > 0)?;
    let is_behind = |rank: &&&RankReport| sum(&rank.collective_counts) < most;
    let behind: Vec<u64> = known.iter().filter(is_behind).map(|rank| rank.rank).collect();
    // Ranks that have left hold nobody up who is level with the others.
    let has_left = |status: MissingStatus| !status.unresponsive && !status.considered_dead;
    let silent = last.missing_ranks.iter().filter(|rank| !rank.status.is_some_and(has_left));
    let missing: Vec<u64> = silent.map(|rank| rank.rank).collect();
    let listed = (last.ranks.len() + last.missing_ranks.len()) as u64;
    let is_level = behind.is_empty() && missing.is_empty() && unknown.is_empty() && listed >= last.size;
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
        let Some(CommunicatorId { hash, size, .. }) = &self.communicator else {
            f.write_str("the job ")?;
            return self.kind.write(f);
        };
        let Some(place) = &self.rank else {
            write!(f, "communicator {hash} of {size} ranks ")?;
            return self.kind.write(f);
        };
        write!(f, "rank {} of {size} ", place.rank)?;
        self.kind.write(f)?;
        write!(f, " ({place}; communicator {hash})")
    }
}

impl VerdictKind {
    /// Writes the sentence without its subject.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead => f.write_str("is dead: its process cannot be reached any more"),
            Self::Unresponsive => {
                f.write_str("does not answer: its process is stopped, has ended, or cannot be reached")
            }
            Self::Unaccounted { ranks, more_ranks } => write!(
                f,
                "is reported without some of them: {} neither among those that answered nor among the missing",
                list(ranks, *more_ranks)
            ),
            Self::Failed { code } => {
                match u32::try_from(*code).map(|code| ResultCode::from_raw(ncclResult_t(code))) {
                    Ok(code) => write!(f, "has failed: it reports {code}"),
                    Err(_) => write!(f, "has failed: it reports the unknown error {code}"),
                }
            }
            Self::Aborted => f.write_str("has aborted its communicator"),
            Self::Mismatched { than, more, less } => write!(
                f,
                "has called other collectives than rank {than}: {} more and {} less",
                amounts(more),
                amounts(less)
            ),
            Self::Frozen { behind, missing } => {
                f.write_str("is frozen: no rank has launched a collective between the reports")?;
                if !behind.is_empty() {
                    write!(f, ", and {} behind", list(behind, 0))?;
                }
                if !missing.is_empty() {
                    write!(f, ", and {} missing", list(missing, 0))?;
                }
                Ok(())
            }
            Self::Straggler { collective, launched, behind: 0 } => write!(
                f,
                "is a straggler: it has launched {launched} {collective}, as many as others by now, and less before"
            ),
            Self::Straggler { collective, launched, behind } => {
                let most = launched.saturating_add(*behind);
                write!(f, "is a straggler: it has launched {launched} {collective}, others up to {most}")
            }
            Self::Ahead { collective, launched, ahead: 0 } => write!(
                f,
                "is ahead: it has launched {launched} {collective}, not more than most others by now, but before"
            ),
            Self::Ahead { collective, launched, ahead } => {
                write!(
                    f,
                    "is ahead: it has launched {launched} {collective}, {ahead} more than most others"
                )
            }
            Self::Left => f.write_str("has left: its process answers, and has no such communicator"),
            Self::OtherState { state, others } => {
                write!(f, "is in state {state}, most others in {others}")
            }
            Self::Contradictory { problem } => write!(f, "is reported with a contradiction: {problem}"),
            Self::Incomplete { problem } => write!(f, "is reported incompletely: {problem}"),
            Self::Idle => f.write_str(
                "is idle: no rank has launched a collective between the reports, and all have launched the same",
            ),
        }
    }
}

fn list(ranks: &[u64], more: u64) -> String {
    const NAMED: usize = 8;
    let named = ranks.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match more.saturating_add(ranks.len() as u64) {
        1 => format!("rank {named} is"),
        count if count > NAMED as u64 => format!("{count} ranks (the first: {named}) are"),
        _ => format!("ranks {named} are"),
    }
}

fn amounts(amounts: &BTreeMap<String, u64>) -> String {
    amounts.iter().map(|(name, by)| format!("{by} {name}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Report, VerdictKind, verdicts};
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
    fn rank_ahead_of_most_others_is_named_in_their_place() {
        assert_only(
            &[[5, 5, 5, 6], [6, 6, 6, 7]],
            "rank 3 of 4 is ahead: it has launched 7 AllReduce, 1 more than most others",
        );
    }

    #[test]
    fn rank_behind_in_three_of_four_reports_is_a_straggler() {
        let (slow, even) = (|at: u64| [at, at, at - 1, at], |at: u64| [at; 4]);
        assert_only(
            &[slow(10), slow(11), even(12), slow(13)],
            "rank 2 of 4 is a straggler: it has launched 12 AllReduce",
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
    fn rank_that_launches_nothing_while_others_do_is_a_straggler() {
        const START: &str = "rank 1 of 3 is a straggler: it has launched 5 AllReduce";
        assert_only(&[[5, 5, 5], [8, 5, 8]], START);
        assert_only(&[[5, 5, 5], [8, 5, 8], [8, 5, 8]], START);
        assert_only(&[[5, 5, 5], [8, 5, 8], [12, 5, 12], [90, 5, 90]], START);
        // All others wait for it, at once.
        let wait = [6, 5, 6];
        assert_only(&[[4, 4, 4], [5, 5, 5], wait, wait, wait, wait, wait, wait], START);
        assert_only(&[[5, 5, 5], [6, 5, 6], [6, 5, 6]], START);
        assert_none(&[[5, 5, 5], [6, 5, 6]]);
        assert_none(&[[5, 5, 5], [5, 5, 5], [5, 5, 5], [5, 5, 5], [6, 5, 6]]);
    }

    #[test]
    fn lag_that_grows_from_each_report_to_the_next_is_a_straggler() {
        let diverging = [[10, 10, 10], [110, 110, 90], [210, 210, 170], [310, 310, 250]];
        assert_only(
            &diverging,
            "rank 2 of 3 is a straggler: it has launched 250 AllReduce, others up to 310",
        );
        assert_none(&diverging[..2]);
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
            "communicator 0xab of 4 ranks is frozen: no rank has launched a collective between the reports, and ranks 1, 2 \
             are missing",
            "rank 3 of 4 has left: its process answers, and has no such communicator",
        ];
        assert_eq!(texts.len(), starts.len());
        assert!(texts.iter().zip(starts).all(|(text, start)| text.starts_with(start)), "{texts:#?}");
    }

    /// Expects one verdict on a report, which begins like this.
    #[track_caller]
    fn assert_odd(changes: &[(&str, Option<Value>)], start: &str) {
        let texts = texts(&[odd(changes)]);
        assert!(texts.len() == 1 && texts[0].starts_with(start), "{changes:?}: {texts:#?}");
    }

    #[test]
    fn what_a_report_does_not_say_of_a_rank_is_no_sound_rank() {
        assert_eq!(texts(&[odd(&[])]), [""; 0]);
        let state = "rank 1 of 2 is reported incompletely: the report does not have its state (process 101 on 10.0.0.1, \
            device 1; communicator 0xab)";
        let cut = json!({ "init_state": 0, "async_error": 0 });
        for status in [None, Some(json!(null)), Some(json!("unknown")), Some(json!({})), Some(cut)] {
            assert_odd(&[("@/status", status)], state);
        }
        let numbers =
            "rank 1 of 2 is reported incompletely: the report has no numbers of its collectives (process 101";
        for counters in [
            None,
            Some(json!(null)),
            Some(json!({})),
            Some(json!([])),
            Some(json!({ "AllReduce": -5, "Broadcast": 3 })),
            Some(json!({ "AllReduce": 18_446_744_073_709_551_616.0, "Broadcast": 3 })),
            Some(json!({ "AllReduce": null })),
        ] {
            assert_odd(&[("@/collective_counts", counters)], numbers);
        }
        let number =
            "rank 1 of 2 is reported incompletely: the report has no number of its Broadcast, as of others";
        assert_odd(&[("@/collective_counts/Broadcast", None)], number);
        let missing = |status: Value| json!([with_status(missing(1, true, false), status)]);
        let reason =
            "rank 1 of 2 is reported incompletely: the report does not say why it is missing (process 101";
        for status in [json!(null), json!({}), json!({ "unresponsive": true }), json!("dead")] {
            let changes = [
                ("#/ranks", Some(json!([rank(0, 120, 3)]))),
                ("#/ranks_count", None),
                ("#/missing_ranks", Some(missing(status))),
                ("#/missing_ranks_count", None),
            ];
            assert_odd(&changes, reason);
        }
    }

    fn with_status(mut missing: Value, status: Value) -> Value {
        missing["status"] = status;
        missing
    }

    #[test]
    fn rank_whose_numbers_are_unknown_is_no_straggler_and_holds_nobody_up() {
        let report = |at: u64| {
            let mut unknown = rank(2, 0, 0);
            unknown["collective_counts"] = json!({});
            report(&[rank(0, at, 0), rank(1, at, 0), unknown], &[])
        };
        let texts = texts(&[report(10), report(20), report(30)]);
        let start = "rank 2 of 3 is reported incompletely: ";
        assert!(texts.len() == 1 && texts[0].starts_with(start), "{texts:#?}");
    }

    #[test]
    fn ranks_without_an_entry_are_named() {
        let unaccounted = |size: u64, ranks: &str| {
            let start = format!(
                "communicator 0xab of {size} ranks is reported without some of them: {ranks} neither among those that \
                 answered nor among the missing"
            );
            assert_odd(&[("#/size", Some(json!(size)))], &start);
        };
        unaccounted(3, "rank 2 is");
        unaccounted(10, "ranks 2, 3, 4, 5, 6, 7, 8, 9 are");
        unaccounted(2_147_483_647, "2147483645 ranks (the first: 2, 3, 4, 5, 6, 7, 8, 9) are");
        unaccounted(u64::MAX, "18446744073709551613 ranks (the first: 2, 3, 4, 5, 6, 7, 8, 9) are");
        let none = [("#/ranks", None), ("#/ranks_count", None)];
        assert_odd(&none, "communicator 0xab of 2 ranks is reported without some of them: ranks 0, 1 are");
        let kind = &verdicts(&[odd(&[("#/size", Some(json!(100)))])])[0].kind;
        let ranks = (2..34).collect();
        assert_eq!(*kind, VerdictKind::Unaccounted { ranks, more_ranks: 66 });
    }

    #[test]
    fn what_a_report_says_that_cannot_be_is_named() {
        let number = |number: u64| Some(json!(number));
        const IS: &str = "is reported with a contradiction";
        let cases: [(&str, u64, &[&str]); 8] = [
            ("@/rank", 1_804_289_383, &["rank 1804289383 of 2 IS: ranks are below 2 (process 101"]),
            ("@/rank", 2, &["rank 2 of 2 IS: ranks are below 2 (process 101"]),
            ("@/rank", 0, &["rank 0 of 2 IS: the report lists it 2 times (process 100"]),
            ("#/size", 1, &["rank 1 of 1 IS: ranks are below 1 ("]),
            ("#/size", 0, &["rank 0 of 0 IS: ranks are below 0 (", "rank 1 of 0 IS: ranks are below 0 ("]),
            (
                "#/ranks_count",
                7,
                &[
                    "communicator 0xab of 2 ranks IS: the report states 7 ranks that have answered, and lists 2",
                ],
            ),
            (
                "#/missing_ranks_count",
                5,
                &["communicator 0xab of 2 ranks IS: the report states 5 missing ranks, and lists 0"],
            ),
            ("/communicators_count", 9, &["the job IS: the report states 9 communicators, and lists 2"]),
        ];
        for (pointer, value, starts) in cases {
            let mut texts = texts(&[odd(&[(pointer, number(value))])]);
            // Whose number is another one is not accounted for.
            texts.retain(|text| !text.contains(": rank 1 is neither"));
            let is_so = |(text, start): (&String, &&str)| text.starts_with(&start.replace("IS", IS));
            assert!(
                texts.len() == starts.len() && texts.iter().zip(starts).all(is_so),
                "{pointer} {value}: {texts:#?}"
            );
        }
        let both = [
            ("#/missing_ranks", Some(json!([missing(1, false, false)]))),
            ("#/missing_ranks_count", number(1)),
        ];
        let texts = texts(&[odd(&both)]);
        assert!(
            texts.iter().any(|text| text.contains("contradiction: the report lists it 2 times")),
            "{texts:#?}"
        );
        let mut one = odd(&[("/communicators_count", number(3))]);
        one.communicators.push(one.communicators[0].clone());
        let texts = self::texts(&[one]);
        let start =
            "communicator 0xab of 2 ranks is reported with a contradiction: the report lists it 2 times";
        assert_eq!(texts, [start]);
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
        let text = "the job is reported incompletely: 2 time-outs of processes that were asked";
        assert_eq!(texts(std::slice::from_ref(&late)), [text]);
        assert!(verdicts(std::slice::from_ref(&late))[0].is_problem());
        assert!(texts(&[late, odd(&[])]).iter().all(|text| !text.contains("time-outs")));
        for absent in
            [("/ras", None), ("/ras/timeouts_count", None), ("/ras/timeouts_count", Some(json!(null)))]
        {
            assert_odd(
                &[absent],
                "the job is reported incompletely: the report does not say how many processes",
            );
        }
    }

    #[test]
    fn numbers_and_states_are_those_of_the_last_report() {
        assert_only(
            &[[10, 10, 9, 10], [11, 11, 10, 11], [12, 12, 11, 12], [13; 4]],
            "rank 2 of 4 is a straggler: it has launched 13 AllReduce, as many as others by now, and less before",
        );
        assert_only(
            &[[10, 10, 9, 10], [11, 11, 10, 11], [12, 12, 11, 12], [13, 14, 13, 14]],
            "rank 2 of 4 is a straggler: it has launched 13 AllReduce, others up to 14",
        );
        assert_only(
            &[[5, 5, 5, 6], [6, 6, 6, 7], [7, 7, 7, 8], [9; 4]],
            "rank 3 of 4 is ahead: it has launched 9 AllReduce, not more than most others by now, but before",
        );
        let left = |at: u64| report(&[rank(0, at, 0), rank(1, at, 0)], &[missing(2, false, false)]);
        let back = level(&[8, 8, 8]);
        assert_eq!(texts(&[left(5), left(6), left(7), back]), [""; 0]);
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

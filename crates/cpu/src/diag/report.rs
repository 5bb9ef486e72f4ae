//! Reports of findings: the first finding of a kind immediately, the number of similar findings when the process ends.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{LazyLock, Mutex, PoisonError};

use cuda_common::finding::{self, Finding, IGNORE, Ignored, REPORT};
use cuda_common::stack::Stack;
use libnccl::internal::environment::variable;

use crate::diag::debug;
use crate::diag::settings::{self, STACKS, STRICT};

/// Set once the environment has been read.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// The ignored findings. Initializing this also opens the findings file.
static IGNORED: LazyLock<Ignored> = LazyLock::new(|| {
    HAS_BEGUN.store(true, Relaxed);
    if let Some(name) = variable(REPORT).filter(|name| !name.is_empty()) {
        let opened = name.to_str().ok_or(io::ErrorKind::InvalidFilename.into()).and_then(finding::open);
        if let Err(error) = opened {
            debug::warn_on_stderr(&format!("{REPORT} is {name:?}, which cannot be opened: {error}"));
        }
    }
    settings::read(IGNORE, Ignored::default(), &Ignored::expected(), Ignored::parse)
});

/// Identifies similar findings: the same kind and rank, and texts that differ in numbers only.
type Place = (Finding, Option<usize>, String);

struct Found {
    text: String,
    /// The number of similar findings after the first.
    others: u64,
    /// Set if the findings are reported, not only written to the file.
    is_reported: bool,
}

static FOUND: Mutex<BTreeMap<Place, Found>> = Mutex::new(BTreeMap::new());

/// Reads the environment and reports invalid values.
pub(crate) fn begin() {
    LazyLock::force(&IGNORED);
}

/// Returns `true` if the environment has been read. Otherwise there is nothing to report at the end.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Relaxed)
}

/// Returns `true` if a finding is neither reported nor an error.
pub(crate) fn is_ignored(finding: Finding) -> bool {
    IGNORED.has(finding)
}

pub(crate) fn report(finding: Finding, rank: impl Into<Option<usize>>, text: &str) {
    note(finding, rank.into(), text, true);
}

/// Appends a finding to the file only.
pub(crate) fn record(finding: Finding, rank: impl Into<Option<usize>>, text: &str) {
    begin();
    if finding::file().is_some() {
        note(finding, rank.into(), text, false);
    }
}

/// Reports a finding in strict mode; otherwise, only [records](record) it. For findings that are harmless to the current program.
pub(crate) fn report_if_strict(finding: Finding, rank: impl Into<Option<usize>>, text: &str) {
    if *STRICT { report(finding, rank, text) } else { record(finding, rank, text) }
}

fn note(finding: Finding, rank: Option<usize>, text: &str, is_reported: bool) {
    if is_ignored(finding) {
        return;
    }
    // Each communicator has its own id. Each wait is reported, because a later one may last forever.
    let is_one = matches!(finding, Finding::LateRank | Finding::LeakedCommunicator);
    let kept = |character: &char| is_one || !character.is_ascii_hexdigit();
    let place = (finding, rank, text.chars().filter(kept).collect());
    let mut all = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = all.get_mut(&place) {
        found.others += 1;
        return;
    }
    all.insert(place, Found { text: text.to_owned(), others: 0, is_reported });
    drop(all);
    let frames = STACKS.then(|| Stack::capture().frames()).unwrap_or_default();
    let stack: String = frames.iter().map(|frame| format!("\n    {frame}")).collect();
    finding::append(finding, 1, rank, text, &[frames]);
    if is_reported {
        debug::warn_on_stderr(&format!("{text} [{}]{stack}", finding.name()));
    }
}

/// Reports the numbers of similar findings that were not reported individually.
pub(crate) fn end() {
    // Another thread may hold the lock forever.
    let Ok(all) = FOUND.try_lock() else { return };
    for ((finding, rank, _), Found { text, others, is_reported }) in
        all.iter().filter(|(_, found)| found.others > 0)
    {
        finding::append(*finding, *others, *rank, text, &[]);
        if *is_reported {
            debug::warn_on_stderr(&format!("{others} more like this: {text} [{}]", finding.name()));
        }
    }
}

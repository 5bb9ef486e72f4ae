//! Reports of findings: the first of a place at once, the number of the others when the process ends.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, PoisonError};

use libnccl::internal::environment::variable;

use crate::diag::debug;
use crate::diag::finding::{self, Finding, IGNORE, Ignored, REPORT};
use crate::diag::settings::{self, STACKS, STRICT};
use crate::diag::stack::Stack;

/// True once the environment was read.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// The findings that are none. The file of the others is opened with it.
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

/// The findings that are alike: of one kind and rank, with texts that differ in numbers only.
type Place = (Finding, Option<usize>, String);

/// The findings of a place.
struct Found {
    text: String,
    /// The number of those after the first.
    others: u64,
    /// True if they are reported, and not in the file alone.
    is_reported: bool,
}

static FOUND: Mutex<BTreeMap<Place, Found>> = Mutex::new(BTreeMap::new());

/// Reads the environment, and says what is wrong there.
pub(crate) fn begin() {
    LazyLock::force(&IGNORED);
}

/// Returns `true` if the environment was read, without which there is nothing to report at the end.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Relaxed)
}

/// Returns `true` if a finding is neither reported nor an error.
pub(crate) fn is_ignored(finding: Finding) -> bool {
    IGNORED.has(finding)
}

/// Reports a finding, of a rank if it is one's.
pub(crate) fn report(finding: Finding, rank: impl Into<Option<usize>>, text: &str) {
    note(finding, rank.into(), text, true);
}

/// Appends a finding to the file alone.
pub(crate) fn record(finding: Finding, rank: impl Into<Option<usize>>, text: &str) {
    begin();
    if finding::file().is_some() {
        note(finding, rank.into(), text, false);
    }
}

/// Reports a finding that is harmless to the program at hand in strict mode, and records it otherwise.
pub(crate) fn report_if_strict(finding: Finding, rank: impl Into<Option<usize>>, text: &str) {
    if *STRICT { report(finding, rank, text) } else { record(finding, rank, text) }
}

fn note(finding: Finding, rank: Option<usize>, text: &str, is_reported: bool) {
    if is_ignored(finding) {
        return;
    }
    // Each communicator has its id, and each wait is reported: a later one may be for ever.
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

/// Reports the numbers of the findings that were not, as they are like others.
pub(crate) fn end() {
    // Another thread may have it for ever.
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

//! Reports of findings: the first of a place at once, the number of the others when the process ends.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use libnccl::environment::variable;

use crate::diag::finding::{Finding, IGNORE, Ignored};
use crate::diag::strict::STRICT;
use crate::diag::wait_limits;

static IGNORED: LazyLock<Ignored> = LazyLock::new(|| {
    let Some(text) = variable(IGNORE) else { return Ignored::default() };
    text.to_str().and_then(Ignored::parse).unwrap_or_else(|| {
        wait_limits::report(&format!(
            "{IGNORE} is {text:?}, which is ignored; expected {}",
            Ignored::expected()
        ));
        Ignored::default()
    })
});

/// The findings that are alike: of one kind and rank, with texts that differ in numbers only.
type Place = (Finding, Option<usize>, String);

/// The first text, and the number of others, of the findings of each place.
static FOUND: Mutex<BTreeMap<Place, (String, u64)>> = Mutex::new(BTreeMap::new());

/// Reads the environment, and says what is wrong there.
pub(crate) fn begin() {
    LazyLock::force(&IGNORED);
}

/// Reports a finding, of a rank if it is one's.
pub(crate) fn report(finding: Finding, rank: impl Into<Option<usize>>, text: &str) {
    if IGNORED.has(finding) {
        return;
    }
    // Each communicator has its id, and each wait is reported: a later one may be for ever.
    let is_one = matches!(finding, Finding::LateRank | Finding::LeakedCommunicator);
    let kept = |character: &char| is_one || !character.is_ascii_hexdigit();
    let place = (finding, rank.into(), text.chars().filter(kept).collect());
    let mut is_first = false;
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, others) = found.entry(place).or_insert_with(|| {
        is_first = true;
        (text.to_owned(), 0)
    });
    *others += u64::from(!is_first);
    drop(found);
    if is_first {
        wait_limits::report(&format!("{text} [{}]", finding.name()));
    }
}

/// Reports that something is left which the program should have destroyed, in strict mode.
pub(crate) fn leak(finding: Finding, rank: impl Into<Option<usize>>, text: &str) {
    if *STRICT {
        report(finding, rank, text);
    }
}

/// Reports the numbers of the findings that were not, as they are like others.
pub(crate) fn end() {
    // Another thread may have it for ever.
    let Ok(found) = FOUND.try_lock() else { return };
    for ((finding, ..), (text, others)) in found.iter().filter(|(_, (_, others))| *others > 0) {
        wait_limits::report(&format!("{others} more like this: {text} [{}]", finding.name()));
    }
}

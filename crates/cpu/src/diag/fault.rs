//! Planted faults, `LIBNCCL_CPU_PLANT`: slow and wrong ranks, to test programs that look for such.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use libnccl::internal::environment::variable;

use crate::diag::wait_limits;

/// Ranks that are slow or send wrong elements, to test tools: `slow:RANK:MICROSECONDS`, `wrong:RANK`. Default: none.
const NAME: &str = "LIBNCCL_CPU_PLANT";

/// The faults of a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The time that it sleeps before each operation or group.
    pub(crate) delay: Duration,
    /// Set if an element of what it sends is wrong.
    pub(crate) sends_wrong: bool,
}

/// The faults by rank, none by default.
static FAULTS: LazyLock<BTreeMap<usize, Fault>> = LazyLock::new(|| {
    let Some(text) = variable(NAME) else { return BTreeMap::new() };
    parse(&text.to_string_lossy()).unwrap_or_else(|| {
        wait_limits::report(&format!(
            "{NAME} is {text:?}, which is ignored; expected slow:RANK:MICROSECONDS and wrong:RANK, separated by commas"
        ));
        BTreeMap::new()
    })
});

/// Returns `true` if a rank has faults.
pub(crate) fn is_planted() -> bool {
    !FAULTS.is_empty()
}

/// Returns the faults of a rank, which are reported once in each process.
pub(crate) fn of_rank(rank: usize) -> Option<Fault> {
    static REPORTED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    let fault = *FAULTS.get(&rank)?;
    if REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(rank) {
        wait_limits::report(&format!("{NAME}: rank {rank} {}", fault.describe()));
    }
    Some(fault)
}

impl Fault {
    fn describe(self) -> String {
        let delay = format!("sleeps {} us before each operation", self.delay.as_micros());
        match (self.delay.is_zero(), self.sends_wrong) {
            (false, true) => format!("{delay} and sends a wrong element"),
            (false, false) => delay,
            (true, _) => "sends a wrong element".into(),
        }
    }
}

fn parse(text: &str) -> Option<BTreeMap<usize, Fault>> {
    let mut faults: BTreeMap<usize, Fault> = BTreeMap::new();
    for part in text.split(',') {
        let fields: Vec<&str> = part.trim().split(':').collect();
        match fields[..] {
            ["slow", rank, microseconds] => {
                let delay = microseconds.parse().ok().filter(|microseconds| *microseconds > 0)?;
                faults.entry(rank.parse().ok()?).or_default().delay = Duration::from_micros(delay);
            }
            ["wrong", rank] => {
                faults.entry(rank.parse().ok()?).or_default().sends_wrong = true;
            }
            _ => return None,
        }
    }
    Some(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_several_ranks_are_parsed() {
        let slow = Fault { delay: Duration::from_micros(250), sends_wrong: false };
        let wrong = Fault { delay: Duration::ZERO, sends_wrong: true };
        let both = Fault { sends_wrong: true, ..slow };
        assert_eq!(parse("slow:3:250"), Some(BTreeMap::from([(3, slow)])));
        assert_eq!(parse("slow:3:250, wrong:0"), Some(BTreeMap::from([(0, wrong), (3, slow)])));
        assert_eq!(parse("wrong:1,slow:1:250"), Some(BTreeMap::from([(1, both)])));
    }

    #[test]
    fn malformed_faults_are_rejected() {
        for text in [
            "",
            "slow",
            "slow:1",
            "slow:1:0",
            "slow:-1:5",
            "slow:1:5:6",
            "wrong",
            "wrong:x",
            "wrong:1,",
            "odd:1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

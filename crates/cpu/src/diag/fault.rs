//! Planted faults, `LIBNCCL_CPU_PLANT`: slow and faulty ranks, to test programs that detect them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::diag::{debug, settings};

/// Ranks that are slow or send wrong elements, to test tools: `slow:RANK:MICROSECONDS`, `wrong:RANK`. Default: none.
const NAME: &str = "LIBNCCL_CPU_PLANT";

const EXPECTED: &str = "slow:RANK:MICROSECONDS and wrong:RANK, separated by commas";

/// The faults of a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The time that the rank sleeps before each operation or group.
    pub(crate) delay: Duration,
    /// Set if the rank sends data with a wrong element.
    pub(crate) sends_wrong: bool,
}

/// The faults by rank.
type Faults = BTreeMap<usize, Fault>;

static FAULTS: LazyLock<Faults> = LazyLock::new(|| settings::read(NAME, Faults::new(), EXPECTED, parse));

/// Returns `true` if a rank has faults.
pub(crate) fn is_planted() -> bool {
    !FAULTS.is_empty()
}

/// Returns the faults of a rank. They are reported once in each process.
pub(crate) fn of_rank(rank: usize) -> Option<Fault> {
    static REPORTED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    let fault = *FAULTS.get(&rank)?;
    if REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(rank) {
        debug::warn_on_stderr(&format!("{NAME}: rank {rank} {}", fault.describe()));
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

fn parse(text: &str) -> Option<Faults> {
    let mut faults = Faults::new();
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
        assert_eq!(parse("slow:3:250"), Some(Faults::from([(3, slow)])));
        assert_eq!(parse("slow:3:250, wrong:0"), Some(Faults::from([(0, wrong), (3, slow)])));
        assert_eq!(parse("wrong:1,slow:1:250"), Some(Faults::from([(1, both)])));
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

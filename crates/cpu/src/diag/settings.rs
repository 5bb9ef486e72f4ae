//! Diagnostic settings from the environment: strict mode, stacks, failures, time limits for waits, and planted faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use cuda_common::finding::{FAILURES as FAILURES_VARIABLE, Failures};
use cuda_common::{finding, stack};
use libnccl::internal::environment::variable;

use crate::diag::debug::{self, Subsystem};

/// The seconds after which a wait for other ranks is reported on stderr; 0 for never. Default: 10.
const WARN_AFTER_VARIABLE: &str = "LIBNCCL_CPU_WARN_AFTER";
/// The seconds after which a wait for other ranks is an error; 0 for never. Default: 0.
const TIMEOUT_VARIABLE: &str = "LIBNCCL_CPU_TIMEOUT";

/// Set in strict mode, `LIBNCCL_CPU_STRICT=1`, in which no call relies on buffering that NCCL does not guarantee.
///
/// - A send returns when the receiver has received the data.
/// - In a group, the collectives of a communicator run before its sends and receives.
/// - Collectives wait for the other ranks' calls even if the count is 0 or a rank needs no data from the others.
/// - `ncclAlltoAll` in place is an error.
///
/// A program that passes in strict mode cannot hang in NCCL because of missing buffers. Objects that the program has not
/// destroyed, deregistered or freed are reported.
pub(crate) static STRICT: LazyLock<bool> = LazyLock::new(|| is_on(finding::STRICT));

pub(crate) static STACKS: LazyLock<bool> = LazyLock::new(|| is_on(stack::STACKS));

pub(crate) static FAILURES: LazyLock<Failures> = LazyLock::new(|| {
    let parse = |text: &str| if text.is_empty() { Some(Failures::Error) } else { Failures::parse(text) };
    read(FAILURES_VARIABLE, Failures::Error, Failures::EXPECTED, parse)
});

pub(crate) static WARN_AFTER: LazyLock<Option<Duration>> =
    LazyLock::new(|| limit(WARN_AFTER_VARIABLE, Duration::from_secs(10)));

pub(crate) static TIMEOUT: LazyLock<Option<Duration>> =
    LazyLock::new(|| limit(TIMEOUT_VARIABLE, Duration::ZERO));

/// Returns a variable's value, or `default` if it is unset or invalid. Invalid values are reported.
pub(super) fn read<T>(name: &str, default: T, expected: &str, parse: impl Fn(&str) -> Option<T>) -> T {
    let Some(text) = variable(name) else { return default };
    text.to_str().and_then(parse).unwrap_or_else(|| {
        debug::warn_on_stderr(&format!("{name} is {text:?}, which is ignored; expected {expected}"));
        default
    })
}

fn is_on(name: &str) -> bool {
    let is_on = read(name, false, "0 or 1", |text| match text.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    });
    if is_on {
        debug::info(Subsystem::Environment, || format!("{name} set by environment to 1."));
    }
    is_on
}

fn limit(name: &str, default: Duration) -> Option<Duration> {
    Some(read(name, default, "a number of seconds", seconds)).filter(|limit| !limit.is_zero())
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
}

/// Ranks that are slow or send a corrupted element, to test tools: `slow:RANK:MICROSECONDS`, `wrong:RANK`. Default: none.
const PLANT_VARIABLE: &str = "LIBNCCL_CPU_PLANT";

const EXPECTED_FAULTS: &str = "slow:RANK:MICROSECONDS and wrong:RANK, separated by commas";

#[derive(Clone, Copy, Default)]
pub(crate) struct Fault {
    /// The time that the rank sleeps before each operation or group.
    pub(crate) delay: Duration,
    /// Set if the rank sends data with a corrupted element.
    pub(crate) sends_wrong: bool,
}

type Faults = BTreeMap<usize, Fault>;

static FAULTS: LazyLock<Faults> =
    LazyLock::new(|| read(PLANT_VARIABLE, Faults::new(), EXPECTED_FAULTS, parse_faults));

pub(crate) fn has_faults() -> bool {
    !FAULTS.is_empty()
}

/// Returns the faults of a rank. They are reported once in each process.
pub(crate) fn fault_of_rank(rank: usize) -> Option<Fault> {
    static REPORTED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    let fault = *FAULTS.get(&rank)?;
    if REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(rank) {
        debug::warn_on_stderr(&format!("{PLANT_VARIABLE}: rank {rank} {}", fault.describe()));
    }
    Some(fault)
}

impl Fault {
    fn describe(self) -> String {
        let delay = format!("sleeps {} us before each operation", self.delay.as_micros());
        match (self.delay.is_zero(), self.sends_wrong) {
            (false, true) => format!("{delay} and sends a corrupted element"),
            (false, false) => delay,
            (true, _) => "sends a corrupted element".into(),
        }
    }
}

fn parse_faults(text: &str) -> Option<Faults> {
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

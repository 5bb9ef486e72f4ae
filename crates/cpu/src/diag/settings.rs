//! Diagnostic settings from the environment: strict mode, stacks, failures and time limits for waits.

use std::sync::LazyLock;
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
/// - Calls of count 0 wait for the other ranks' calls, and so do short collectives from which a rank needs no more data.
/// - `ncclAlltoAll` in place is an error.
///
/// A program that passes cannot hang in NCCL because of missing buffers. Objects that it has not destroyed, deregistered or freed
/// are listed.
pub(crate) static STRICT: LazyLock<bool> = LazyLock::new(|| is_on(finding::STRICT));

/// Set if findings are reported with stacks.
pub(crate) static STACKS: LazyLock<bool> = LazyLock::new(|| is_on(stack::STACKS));

/// The consequence of a failed operation.
pub(crate) static FAILURES: LazyLock<Failures> = LazyLock::new(|| {
    let parse = |text: &str| if text.is_empty() { Some(Failures::Error) } else { Failures::parse(text) };
    read(FAILURES_VARIABLE, Failures::Error, Failures::EXPECTED, parse)
});

/// The time after which a wait is reported.
pub(crate) static WARN_AFTER: LazyLock<Option<Duration>> =
    LazyLock::new(|| limit(WARN_AFTER_VARIABLE, Duration::from_secs(10)));

/// The time after which a wait fails on all ranks.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_a_number_of_seconds() {
        assert_eq!(seconds(" 2.5 "), Some(Duration::from_millis(2500)));
        assert_eq!(seconds("0"), Some(Duration::ZERO));
        for text in ["", "-1", "10s", "inf", "nan", "1e40"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}

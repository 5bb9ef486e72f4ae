//! The time limits of waits for other ranks: when to report one, and when to give it up; from the environment.

use std::io::Write;
use std::sync::LazyLock;
use std::time::Duration;

use libnccl::internal::environment::variable;

use crate::diag::debug;

/// The seconds after which a wait for other ranks is reported on stderr; 0 for never. Default: 10.
const WARN_AFTER_VARIABLE: &str = "LIBNCCL_CPU_WARN_AFTER";
/// The seconds after which a wait for other ranks is an error; 0 for never. Default: 0.
const TIMEOUT_VARIABLE: &str = "LIBNCCL_CPU_TIMEOUT";

/// The time after which a wait is reported.
pub(crate) static WARN_AFTER: LazyLock<Option<Duration>> =
    LazyLock::new(|| seconds(WARN_AFTER_VARIABLE, Some(Duration::from_secs(10))));

/// The time after which a wait is an error for all ranks.
pub(crate) static TIMEOUT: LazyLock<Option<Duration>> = LazyLock::new(|| seconds(TIMEOUT_VARIABLE, None));

/// Reports a mistake on the standard error and in the log.
pub(crate) fn report(text: &str) {
    // In one piece, so that the lines of several ranks do not mix; a closed standard error is no reason to panic.
    let _ = std::io::stderr().write_all(format!("libnccl-cpu: {text}\n").as_bytes());
    debug::warn(|| text.to_owned());
}

fn seconds(name: &str, default: Option<Duration>) -> Option<Duration> {
    let Some(text) = variable(name) else { return default };
    match parse(&text.to_string_lossy()) {
        Some(limit) => Some(limit).filter(|limit| !limit.is_zero()),
        None => {
            report(&format!("{name} is {text:?}, which is ignored; expected a number of seconds"));
            default
        }
    }
}

fn parse(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_a_number_of_seconds() {
        assert_eq!(parse(" 2.5 "), Some(Duration::from_millis(2500)));
        assert_eq!(parse("0"), Some(Duration::ZERO));
        for text in ["", "-1", "10s", "inf", "nan", "1e40"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Answers, wait};

fn answers(script: &str, limit: u64) -> Answers {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    wait(shell.spawn().unwrap(), Duration::from_secs(limit))
}

const CALL: &str = r#"'{"probe":{"call":{"added":{},"parameters":{},"problem":"none"}}}'"#;

#[test]
fn child_that_hangs_or_dies_is_a_failure_with_a_reason() {
    let start = Instant::now();
    let late = Some("it took more than 1 s, and was killed");
    let hung = answers(&format!("echo {CALL}; sleep 60 & sleep 60"), 1);
    assert!(hung.probe.failure.as_deref() == late && hung.probe.call.is_some());
    assert_eq!(answers("exec >&- 2>&-; sleep 60", 1).probe.failure.as_deref(), late);
    // A process that the child leaves behind does not matter, inside of its group or not.
    let noise = "while sleep 0.01; do echo x >&2 || exit; done";
    for left in ["sleep 60".to_owned(), format!("({noise})"), format!("setsid sh -c '{noise}'")] {
        let left = answers(&format!("{left} & echo {CALL}"), 50);
        assert!(left.probe.failure.is_none() && left.probe.call.is_some(), "{left:?}");
    }
    let killed = answers(&format!("echo {CALL}; kill -9 $$"), 30);
    assert_eq!(killed.probe.failure.as_deref(), Some("the process ended with signal: 9 (SIGKILL)"));
    assert_eq!(killed.probe.call.unwrap().problem.as_deref(), Some("none"));
    let garbage = answers("head -c 3000000 /dev/urandom; head -c 3000000 /dev/urandom >&2", 30);
    assert!(garbage.probe.call.is_none());
    assert!(start.elapsed() < Duration::from_secs(30));
}

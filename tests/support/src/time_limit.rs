//! Programs under test, which may hang.

use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time after which a program counts as hung.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a program, which must succeed within the limit, and returns its standard output and error.
#[must_use]
pub fn run(command: &mut Command) -> (String, String) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let start = Instant::now();
    while child.try_wait().expect("the program's state").is_none() {
        if start.elapsed() > LIMIT {
            child.kill().expect("it can be killed");
            let Output { stderr, .. } = child.wait_with_output().expect("its output");
            panic!("{command:?} hangs: {}", String::from_utf8_lossy(&stderr));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let Output { status, stdout, stderr } = child.wait_with_output().expect("its output");
    let [output, errors] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success(), "{command:?}: {status}\n{errors}");
    (output, errors)
}

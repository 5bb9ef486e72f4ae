//! Tests of process-wide state, which need a separate process.

use std::env;
use std::process::Command;

/// The variable with the name of the only test in the process.
const VARIABLE: &str = "LIBNCCL_TEST_IN_OWN_PROCESS";

/// Returns whether this process runs only this test, named by its `module_path!()` and its function. If not, runs the test in
/// such a process, and fails if it fails.
pub(crate) fn is_own(module: &str, function: &str) -> bool {
    let (_, module) = module.split_once("::").expect("a module of this program");
    let test = format!("{module}::{function}");
    if env::var_os(VARIABLE).is_some_and(|name| *name == *test) {
        return true;
    }
    let program = env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    command.args(["--exact", &test, "--nocapture"]).env(VARIABLE, &test);
    let output = command.output().expect("this program can be run");
    let [text, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{test}: {}\n{text}{errors}", output.status);
    assert!(text.contains(" 1 passed;"), "{test} did not run:\n{text}");
    false
}

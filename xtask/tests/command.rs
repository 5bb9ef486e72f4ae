//! Runs the tasks as commands.

use std::process::{Command, Output};

fn xtask(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(arguments).envs(environment.iter().copied()).output().expect("xtask runs")
}

#[track_caller]
fn fails_with(output: &Output, text: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(text) && !stderr.contains("panicked"), "{stderr}");
}

#[test]
#[cfg_attr(not(libclang), ignore = "needs libclang")]
fn bindings_check_of_the_committed_bindings_succeeds() {
    let output = xtask(&["bindings", "--check"], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
}

#[test]
fn bindings_without_libclang_is_an_error() {
    let output = xtask(&["bindings", "--check"], &[("LIBCLANG_PATH", "/nowhere")]);
    fails_with(&output, "error: bindgen needs libclang");
}

#[test]
fn nvidia_package_without_python_is_an_error() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let cache = cache.path().to_str().expect("its name is text");
    let output = xtask(&["nvidia-package", "2.18.3"], &[("PATH", "/nowhere"), ("LIBNCCL_CACHE", cache)]);
    fails_with(&output, "python3 does not run");
    assert_eq!(
        std::fs::read_dir(cache).expect("the cache is a folder").count(),
        0,
        "no partial download is left"
    );
}

#[test]
fn malformed_release_is_an_error() {
    fails_with(&xtask(&["nvidia-package", "../2.18.3"], &[]), "is not a release of NCCL");
    fails_with(&xtask(&["headers", "latest"], &[]), "1 of 1 releases failed: latest");
}

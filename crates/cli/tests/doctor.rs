//! Runs `nccl doctor` as a user does.

use std::process::{Command, Output};

use serde_json::Value;

fn doctor(arguments: &[&str], library: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.arg("doctor").args(arguments).env("LIBNCCL_PATH", library);
    command.output().expect("the program starts")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("it writes JSON")
}

#[test]
fn doctor_without_a_library_lists_the_search() {
    let output = doctor(&[], "/nonexistent");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let tried = text.lines().find(|line| line.starts_with("tried")).expect("it lists the search");
    assert!(tried.contains(" /nonexistent (LIBNCCL_PATH): "), "{text}");
    assert!(text.lines().any(|line| line.starts_with("library           none: ")), "{text}");
}

#[test]
fn doctor_json_without_a_library_has_the_error_and_the_search() {
    let output = doctor(&["--json"], "/nonexistent");
    assert_eq!(output.status.code(), Some(1));
    let report = json(&output);
    assert!(report["library"].is_null(), "{report}");
    assert_eq!(report["error"], "no NCCL library could be loaded");
    assert_eq!(report["tried"][0]["source"], "LIBNCCL_PATH");
    assert_eq!(report["tried"][0]["path"], "/nonexistent");
    assert!(report["tried"][0]["problem"].is_string(), "{report}");
    assert_eq!(report["driver"]["library"], "libcuda.so.1");
    assert!(report["driver"]["loaded"].is_boolean() && report["driver"]["gpus"].is_u64(), "{report}");
}

#[test]
fn doctor_with_a_named_library_tries_no_other() {
    let output = doctor(&["--json", "--library", "/nowhere/libnccl.so.2"], "/nonexistent");
    assert_eq!(output.status.code(), Some(1));
    let report = json(&output);
    assert_eq!(report["tried"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(report["tried"][0]["path"], "/nowhere/libnccl.so.2");
}

/// Runs with the library that `LIBNCCL_TEST_LIBRARY` names.
#[test]
#[ignore = "needs a real NCCL, named by LIBNCCL_TEST_LIBRARY"]
fn doctor_describes_a_real_library() {
    let library = std::env::var("LIBNCCL_TEST_LIBRARY").expect("LIBNCCL_TEST_LIBRARY names an NCCL library");
    let report = json(&doctor(&["--json", "--library", &library], "/nonexistent"));
    assert_eq!(report["error"], Value::Null);
    assert_eq!(report["tried"].as_array().map(Vec::len), Some(0), "{report}");
    let found = &report["library"];
    assert_eq!(found["path"], library.as_str());
    assert_eq!(found["version"].as_str().map(|version| version.split('.').count()), Some(3), "{report}");
    for missing in found["missing_functions"].as_array().expect("a list") {
        assert!(missing["name"].as_str().is_some_and(|name| name.starts_with("nccl")), "{report}");
        assert!(missing["since"].is_string(), "{report}");
    }

    let output = doctor(&[], &library);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.starts_with(&format!("library           {library} (LIBNCCL_PATH)\n")), "{text}");
}

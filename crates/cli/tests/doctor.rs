//! Runs `nccl doctor` as a user does.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn doctor(arguments: &[&str], library: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.arg("doctor").args(arguments).env("LIBNCCL_PATH", library);
    command.output().expect("the program starts")
}

/// Runs with nothing in the environment but these variables.
fn doctor_in(environment: &[(&str, &Path)], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.arg("doctor").args(arguments).env_clear().envs(environment.iter().copied());
    command.output().expect("the program starts")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("it writes JSON")
}

/// Returns the advice, which the table must have below its findings.
fn advice(environment: &[(&str, &Path)], arguments: &[&str]) -> Vec<String> {
    let report = json(&doctor_in(environment, &[arguments, &["--json"]].concat()));
    let advice: Vec<String> = report["advice"].as_array().expect("a list").iter().map(text_of).collect();
    let table = doctor_in(environment, arguments).stdout;
    let table = String::from_utf8_lossy(&table);
    assert!(!advice.is_empty(), "{table}");
    for line in &advice {
        assert!(table.contains(&format!("\n           -> {line}\n")), "{line}\nis not in\n{table}");
    }
    advice
}

/// Returns whether this system has an NCCL of its own.
fn has_library() -> bool {
    !json(&doctor_in(&[], &["--json"]))["library"].is_null()
}

fn text_of(value: &Value) -> String {
    value.as_str().expect("a text").into()
}

#[test]
fn doctor_without_a_library_lists_the_search() {
    let output = doctor(&[], "/nonexistent");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("library\n  problem  no NCCL library could be loaded\n"), "{text}");
    assert!(text.contains("\n  searched /nonexistent (LIBNCCL_PATH): "), "{text}");
}

/// The places of the search before those of RCCL.
const PLACES: [&str; 9] = [
    "LIBNCCL_PATH",
    "dynamic linker",
    "VIRTUAL_ENV",
    "python3 on PATH",
    "CONDA_PREFIX",
    "user's Python packages",
    "system's Python packages",
    "NCCL_HOME",
    "CUDA_HOME",
];

#[test]
fn doctor_lists_every_place_even_if_it_is_empty() {
    let report = json(&doctor_in(&[], &["--json"]));
    if !report["library"].is_null() {
        // This system has an NCCL of its own.
        return;
    }
    let tried = report["tried"].as_array().expect("a list");
    let mut sources: Vec<_> = tried.iter().map(|attempt| text_of(&attempt["source"])).collect();
    sources.dedup();
    let rccl = ["dynamic linker", "ROCM_PATH", "ROCm's default directory"];
    assert_eq!(sources, [&PLACES[..], &rccl].concat());
    assert_eq!(tried[0], json!({ "source": "LIBNCCL_PATH", "path": null, "problem": "not set" }));
    assert!(tried.iter().all(|attempt| attempt["problem"].is_string()), "{report}");
    let output = doctor_in(&[], &[]);
    let table = String::from_utf8_lossy(&output.stdout);
    for place in [
        "  searched LIBNCCL_PATH: not set\n",
        "  searched VIRTUAL_ENV: not set\n",
        "  searched /usr/local/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2 (system's",
    ] {
        assert!(table.contains(place), "{place}\nis not in\n{table}");
    }
}

#[test]
fn doctor_without_a_library_advises_to_install_one() {
    if has_library() {
        return;
    }
    let advice = advice(&[], &[]);
    assert!(advice[0].starts_with("install NCCL: pip install nvidia-nccl-cu12 "), "{advice:?}");
    assert!(
        advice[0].contains("; or, if it is in another place, set LIBNCCL_PATH to its file; or, "),
        "{advice:?}"
    );
}

#[test]
fn doctor_with_a_wrong_named_library_advises_to_correct_the_name() {
    let nowhere = Path::new("/nonexistent");
    assert_eq!(
        advice(&[("LIBNCCL_PATH", nowhere)], &[])[0],
        "set LIBNCCL_PATH to the file of an NCCL library, or unset it to search for one"
    );
    assert_eq!(
        advice(&[], &["--library", "/nonexistent"])[0],
        "give --library the file of an NCCL library, or leave it out to search for one"
    );
}

#[test]
fn doctor_with_a_broken_library_advises_to_repair_it() {
    if has_library() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    let lib = directory.path().join("lib");
    let file = lib.join("libnccl.so.2");
    fs::create_dir(&lib).expect("it is writable");
    fs::write(&file, "not a library").expect("it is writable");
    let home = advice(&[("NCCL_HOME", directory.path())], &[]);
    let linker = advice(&[("LD_LIBRARY_PATH", &lib)], &[]);
    assert_eq!(home[0], format!("repair or remove {} (NCCL_HOME)", file.display()));
    assert_eq!(linker[0], "repair or remove libnccl.so.2 (dynamic linker)");
    assert!(home[1].starts_with("install NCCL: ") && linker[1].starts_with("install NCCL: "));
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
    // Without a GPU, no job of it would start.
    assert_eq!(output.status.success(), report["starts"] == true, "{text}");
    assert!(text.starts_with(&format!("library\n  ok       {library} (LIBNCCL_PATH)\n")), "{text}");
    let release = found["version"].as_str().expect("a text");
    assert!(text.contains(&format!("\n  ok       NCCL {release}, compiled with CUDA ")), "{text}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.args(["env", "--json", "--library", &library]).env("NCCL_SOCKET_IFNAME", "lo");
    let variables = json(&command.output().expect("the program starts"));
    let variables = variables.as_array().expect("a list");
    assert!(variables.len() > 80, "{variables:?}");
    let set =
        variables.iter().find(|variable| variable["name"] == "NCCL_SOCKET_IFNAME").expect("it is known");
    assert_eq!(
        (&set["value"], &set["origin"], &set["known"]),
        (&"lo".into(), &"environment".into(), &true.into())
    );
}

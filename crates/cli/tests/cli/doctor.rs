//! `nccl doctor`.

mod interfaces;
mod made_library;

use std::process::Command;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::common::{assert_has, json, list, nccl, read, repository, run};
use crate::snapshot::Session;

/// Returns whether this system has an own NCCL.
pub(crate) fn has_library() -> bool {
    static HAS_LIBRARY: LazyLock<bool> = LazyLock::new(|| {
        let output = nccl("doctor --json").env_clear().output().expect("the program starts");
        !json(&String::from_utf8_lossy(&output.stdout))["library"].is_null()
    });
    *HAS_LIBRARY
}

fn text_of(value: &Value) -> String {
    value.as_str().expect("a text").into()
}

/// Runs the commands of a snapshot. In them, `sh section NAME` selects a section of a report: the others depend on the machine.
fn replay(name: &str) {
    let session = Session::new();
    session.write("section", "sed -n \"/^$1\\$/,/^[a-z]/{/^ /p;}\" | grep -v '^  searched '");
    session.replay(name, Session::shell);
}

#[test]
fn library_is_described() {
    replay("doctor");
}

/// For a library with a missing dependency, the advice was to set `LIBNCCL_PATH`, which was already set.
#[test]
fn search_for_a_library_is_described() {
    if !has_library() {
        replay("doctor_search");
    }
}

/// Runs with the library that `LIBNCCL_TEST_LIBRARY` names.
#[test]
#[ignore = "needs a real NCCL, named by LIBNCCL_TEST_LIBRARY"]
fn doctor_describes_a_real_library() {
    let library = std::env::var("LIBNCCL_TEST_LIBRARY").expect("LIBNCCL_TEST_LIBRARY names an NCCL library");
    let mut command = nccl(&format!("doctor --json --library {library}"));
    let output = command.env("LIBNCCL_PATH", "/nonexistent").output().expect("the program starts");
    let report = json(&String::from_utf8_lossy(&output.stdout));
    assert_eq!([&report["error"], &report["tried"]], [&Value::Null, &json!([])]);
    let found = &report["library"];
    assert_eq!(found["path"], library.as_str());
    let address = found["unique_id"]["address"].as_str();
    assert!(address.is_some_and(|address| address.parse::<std::net::IpAddr>().is_ok()), "{report}");
    for missing in list(&found["missing_functions"]) {
        assert!(text_of(&missing["name"]).starts_with("nccl") && missing["since"].is_string(), "{report}");
    }
    let library_section = &report["sections"][0];
    // No function of its own version is missing.
    let is_ok = |finding: &Value| finding["level"] == "ok";
    assert!(list(&library_section["findings"]).iter().all(is_ok), "{library_section:#}");

    // Without a GPU, no job with this library would start.
    let status = i32::from(report["starts"] != true);
    let (text, _) = run(nccl("doctor").env("LIBNCCL_PATH", &library), status);
    assert!(text.starts_with(&format!("library\n  ok       {library} (LIBNCCL_PATH)\n")), "{text}");
    assert_has(&text, &[&format!("\n  ok       NCCL {}, compiled with CUDA ", text_of(&found["version"]))]);

    let mut command = nccl(&format!("env --json --library {library}"));
    let variables = json(&run(command.env("NCCL_SOCKET_IFNAME", "lo"), 0).0);
    let variables = list(&variables);
    assert!(variables.len() > 80, "{variables:?}");
    let set =
        variables.iter().find(|variable| variable["name"] == "NCCL_SOCKET_IFNAME").expect("it is known");
    assert_eq!(
        [&set["value"], &set["origin"], &set["known"]],
        [&json!("lo"), &json!("environment"), &json!(true)]
    );
}

/// The table of `nccl env`, for a library of the same version.
#[test]
#[ignore = "needs a real NCCL, named by LIBNCCL_TEST_LIBRARY"]
fn newest_variables_are_those_of_the_real_library() {
    let library = std::env::var("LIBNCCL_TEST_LIBRARY").expect("LIBNCCL_TEST_LIBRARY names an NCCL library");
    let table = json(&read(&repository().join("crates/cli/src/nccl_variables.json")));
    let (text, _) = run(nccl(&format!("env --library {library}")).env_clear(), 0);
    if !text.starts_with(&format!("# NCCL {},", text_of(&table["release"]))) {
        return;
    }
    let (found, _) = run(nccl(&format!("env --json --library {library}")).env_clear(), 0);
    let found: serde_json::Map<_, _> = list(&json(&found))
        .iter()
        .map(|variable| (text_of(&variable["name"]), variable["value"].clone()))
        .collect();
    assert_eq!(Value::Object(found), table["defaults"]);
}

/// Runs as the user nobody, with a file system in /dev/shm.
#[test]
#[ignore = "needs root, mount namespaces and `setpriv`"]
fn doctor_says_why_shared_memory_cannot_be_used() {
    let probe = Command::new("unshare").args(["--mount", "setpriv", "--reuid=65534", "true"]).output();
    if probe.is_ok_and(|output| output.status.success()) {
        replay("doctor_shared_memory");
    } else {
        println!(
            "skipped: doctor_says_why_shared_memory_cannot_be_used, which needs root, mount namespaces and setpriv"
        );
    }
}

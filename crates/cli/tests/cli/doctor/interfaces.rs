//! Compares the interface that `nccl doctor` reports with the choice of a real NCCL, in network namespaces.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

use crate::common::{NCCL, list, repository, run};

/// Interfaces, as arguments of `link`, and environments in which NCCL chooses among them. The value of `NCCL_CONF_FILE` is the
/// content of the file.
#[derive(Deserialize)]
struct Layout {
    links: Vec<String>,
    environments: Vec<BTreeMap<String, String>>,
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Returns the script that creates a layout, and runs the doctor in each environment.
fn script(layout: &Layout, library: &str, program: &Path, directory: &Path) -> String {
    let mut script = format!("set -e\n{}", include_str!("link.sh"));
    let mut line = |text: String| writeln!(script, "{text}").expect("a string");
    layout.links.iter().for_each(|link| line(format!("link {link}")));
    for (index, environment) in layout.environments.iter().enumerate() {
        let file = directory.join(format!("{index}.conf"));
        let variable = |(name, value): (&String, &String)| {
            if name != "NCCL_CONF_FILE" {
                return quoted(&format!("{name}={value}"));
            }
            fs::write(&file, value).expect("it is writable");
            quoted(&format!("{name}={}", file.display()))
        };
        let variables = environment.iter().map(variable).collect::<Vec<_>>().join(" ");
        let directory = directory.display();
        let (library, program) = (quoted(library), program.display());
        let environment = format!("env -i HOME=/nonexistent {variables}");
        line(format!(
            "{environment} {NCCL} doctor --json --library {library} >{directory}/{index}.json 2>&1 || [ $? = 1 ]"
        ));
        line(format!(
            "{environment} NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL {program} {library} >{directory}/{index}.log 2>&1"
        ));
    }
    script
}

/// Returns the interface and its address in the log of a library.
fn in_log(log: &str) -> Option<(&str, &str)> {
    let line = log.lines().find(|line| line.contains("Bootstrap"))?;
    let (name, address) = line.split_once("Using ")?.1.split_once(':')?;
    let address = address.split(['<', '%']).next()?;
    Some((name, address))
}

/// Compares the doctor's report with an id that the library creates in another process. Returns the difference.
fn difference(report: &Value, log: &str, names_id: bool) -> Option<String> {
    let id = &report["library"]["unique_id"];
    let section = list(&report["sections"]).iter().find(|section| section["name"] == "network")?;
    let findings = list(&section["findings"]);
    let says = |part: &str| findings.iter().any(|finding| finding["text"].as_str().unwrap().contains(part));
    let Some(made) = log.lines().find_map(|line| line.strip_prefix("address ")) else {
        let has_problem = findings.iter().any(|finding| finding["level"] == "problem");
        let is_same = id["ok"] == false && has_problem;
        return (!is_same).then(|| "the library makes no id".into());
    };
    if id["address"] != made {
        return Some(format!("the id has {made}"));
    }
    let Some((name, address)) = in_log(log) else { return Some("the log names no interface".into()) };
    let text = match names_id && made != address {
        true => format!("ranks meet at {made}; this machine uses {address} ({name})"),
        false => format!("ranks meet at {made} ({name})"),
    };
    (!says(&text)).then(|| format!("the library uses {name} at {address}"))
}

/// Versions that the source of the tool never names.
const UNNAMED: [&str; 2] = ["2.16.5", "2.31.2"];

#[test]
fn unnamed_versions_are_not_in_the_source() {
    let source = repository().join("crates/cli/src");
    for version in UNNAMED {
        let grep = Command::new("grep").args(["-rnF", version]).arg(&source).output().expect("grep starts");
        assert_eq!(String::from_utf8_lossy(&grep.stdout), "");
    }
}

/// Returns the library that `LIBNCCL_TEST_LIBRARY` names, or the cache's libraries of these and of the unnamed versions.
fn libraries() -> Vec<PathBuf> {
    if let Some(library) = std::env::var_os("LIBNCCL_TEST_LIBRARY") {
        return vec![library.into()];
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let versions = ["2.13.4", "2.18.3", "2.28.9", "2.32.3"].into_iter().chain(UNNAMED);
    let files = versions.map(|version| home.join(format!(".cache/libnccl/{version}/lib/libnccl.so.2")));
    files.filter(|file| file.exists()).collect()
}

/// Uses a separate user namespace, so that it needs no privileges.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c"]);
    command
}

#[test]
#[ignore = "needs `ip`, network namespaces, and NCCL in ~/.cache/libnccl or named by LIBNCCL_TEST_LIBRARY"]
fn interface_is_that_of_a_real_library() {
    let libraries = libraries();
    let can = unshare().arg("ip link add probe type veth peer name peerprobe").output();
    if libraries.is_empty() || !can.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: interface_is_that_of_a_real_library, which needs NCCL, `ip` and network namespaces"
        );
        return;
    }
    let build = tempfile::tempdir().expect("a temporary directory");
    let (source, program) = (build.path().join("id.c"), build.path().join("id"));
    fs::write(&source, include_str!("id.c")).expect("it is writable");
    run(Command::new("cc").arg("-o").args([&program, &source]).arg("-ldl"), 0);
    for library in libraries {
        compare(&library.display().to_string(), &program);
    }
}

fn compare(library: &str, program: &Path) {
    let layouts: Vec<Layout> = serde_json::from_str(include_str!("layouts.json")).expect("layouts");
    let mut differences = Vec::new();
    for layout in &layouts {
        let directory = tempfile::tempdir().expect("a temporary directory");
        run(unshare().arg(script(layout, library, program, directory.path())), 0);
        for (index, environment) in layout.environments.iter().enumerate() {
            let read = |kind: &str| fs::read_to_string(directory.path().join(format!("{index}.{kind}")));
            let report: Value = serde_json::from_str(&read("json").expect("a report")).expect("JSON");
            let names_id =
                environment.iter().any(|(name, value)| format!("{name}={value}").contains("NCCL_COMM_ID="));
            if let Some(difference) = difference(&report, &read("log").expect("a log"), names_id) {
                let network = list(&report["sections"]).iter().find(|section| section["name"] == "network");
                differences.push(format!(
                    "{:?} {environment:?}: {difference}: {} {network:#?}",
                    layout.links, report["library"]["unique_id"]
                ));
            }
        }
    }
    assert!(differences.is_empty(), "{library}: {}", differences.join("\n"));
    let layouts: usize = layouts.iter().map(|layout| layout.environments.len()).sum();
    assert!(layouts >= 40, "{layouts}");
}

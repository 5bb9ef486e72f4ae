//! `nccl doctor`.

mod interfaces;
mod made_library;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::common::{NCCL, assert_has, json, list, nccl, read, repository, run};
use crate::snapshot::Session;

/// Returns `nccl doctor` with only these variables in the environment.
fn doctor_in(environment: &[(&str, &Path)], arguments: &str) -> Command {
    let mut command = nccl(&format!("doctor {arguments}"));
    command.env_clear().envs(environment.iter().copied());
    command
}

/// Returns the output of a command with any exit status.
fn printed(command: &mut Command) -> String {
    String::from_utf8(command.output().expect("the program starts").stdout).expect("text")
}

/// Runs the doctor, and adds a section of its report: the others depend on the machine.
fn add_section(session: &mut Session, name: &str, environment: &[(&str, &Path)], arguments: &str) {
    let report = printed(&mut doctor_in(environment, arguments));
    let after = report.split_once(&format!("{name}\n")).expect("a section").1;
    let lines = after.lines().take_while(|line| line.starts_with(' '));
    let lines: Vec<_> =
        lines.filter(|line| !line.contains("  searched ")).map(|line| format!("{line}\n")).collect();
    let variables = environment.iter().map(|(name, value)| format!("{name}={} ", value.display()));
    let command = format!("$ {}nccl doctor {arguments}", variables.collect::<String>());
    session.add(command.trim_end(), &lines.concat());
}

/// The report with an empty environment: without a library, unless the system has an own NCCL.
static BARE: LazyLock<Value> = LazyLock::new(|| json(&printed(&mut doctor_in(&[], "--json"))));

/// Returns whether this system has an own NCCL.
pub(crate) fn has_library() -> bool {
    !BARE["library"].is_null()
}

fn text_of(value: &Value) -> String {
    value.as_str().expect("a text").into()
}

/// No other library is tried.
#[test]
fn doctor_with_a_wrong_named_library_reports_it() {
    let mut session = Session::new();
    let nowhere = [("LIBNCCL_PATH", Path::new("/nonexistent"))];
    let other = "--library /nowhere/libnccl.so.2";
    for arguments in ["", other] {
        add_section(&mut session, "library", &nowhere, arguments);
        let report = json(&run(&mut doctor_in(&nowhere, &format!("{arguments} --json")), 1).0);
        for field in ["library", "error", "tried"] {
            session.add(&format!("# {field}"), &format!("{:#}\n", report[field]));
        }
        assert_eq!(report["driver"]["library"], "libcuda.so.1");
        assert!(report["driver"]["loaded"].is_boolean() && report["driver"]["gpus"].is_u64(), "{report}");
    }
    session.check("doctor_named_library");
}

#[test]
fn doctor_without_a_library_lists_every_place_and_advises_to_install_one() {
    if has_library() {
        return;
    }
    let mut session = Session::new();
    add_section(&mut session, "library", &[], "");
    let tried = list(&BARE["tried"]);
    assert_eq!(tried[0], json!({ "source": "LIBNCCL_PATH", "path": null, "problem": "not set" }));
    assert!(tried.iter().all(|attempt| attempt["problem"].is_string()), "{tried:?}");
    let mut sources: Vec<_> = tried.iter().map(|attempt| text_of(&attempt["source"])).collect();
    sources.dedup();
    session.add("# sources", &(sources.join("\n") + "\n"));
    let table = printed(&mut doctor_in(&[], ""));
    assert_has(&table, &["  searched LIBNCCL_PATH: not set\n"]);
    session.check("doctor_no_library");
}

/// For a library with a missing dependency, the advice was to set `LIBNCCL_PATH`, which was already set.
#[test]
fn doctor_with_a_broken_library_advises_to_repair_it_or_to_install_what_it_needs() {
    if has_library() {
        return;
    }
    let mut session = Session::new();
    let (broken, lib) = (session.path("broken"), session.path("lib"));
    session.write("broken/lib/libnccl.so.2", "not a library");
    session.write("lib/source.c", "int function(void) { return 0; }");
    let compile = |name: &str, needed: Option<&Path>| {
        let file = lib.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", &format!("-Wl,-soname,{name}"), "-Wl,--no-as-needed", "-o"]);
        run(cc.arg(&file).arg(lib.join("source.c")).args(needed), 0);
        file
    };
    let runtime = compile("libcudart.so.12", None);
    let file = compile("libnccl.so.2", Some(&runtime));
    fs::remove_file(runtime).expect("it is there");
    let given = format!("--library {}", file.display());
    let root = session.path("");
    let (broken_lib, root) = (broken.join("lib"), root.as_path());
    for (name, value) in [
        ("NCCL_HOME", broken.as_path()),
        ("LD_LIBRARY_PATH", &broken_lib),
        ("LIBNCCL_PATH", &file),
        ("NCCL_HOME", root),
        ("LD_LIBRARY_PATH", &lib),
    ] {
        add_section(&mut session, "library", &[(name, value)], "");
    }
    add_section(&mut session, "library", &[], &given);
    session.check("doctor_broken_library");
}

/// Runs with the library that `LIBNCCL_TEST_LIBRARY` names.
#[test]
#[ignore = "needs a real NCCL, named by LIBNCCL_TEST_LIBRARY"]
fn doctor_describes_a_real_library() {
    let library = std::env::var("LIBNCCL_TEST_LIBRARY").expect("LIBNCCL_TEST_LIBRARY names an NCCL library");
    // Without a GPU, no job with this library would start.
    let status = |report: &Value| i32::from(report["starts"] != true);
    let mut command = nccl(&format!("doctor --json --library {library}"));
    let output = command.env("LIBNCCL_PATH", "/nonexistent").output().expect("the program starts");
    let report = json(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(report["error"], Value::Null);
    assert_eq!(report["tried"], json!([]));
    let found = &report["library"];
    assert_eq!(found["path"], library.as_str());
    assert_eq!(found["version"].as_str().map(|version| version.split('.').count()), Some(3), "{report}");
    let address = found["unique_id"]["address"].as_str();
    assert!(address.is_some_and(|address| address.parse::<std::net::IpAddr>().is_ok()), "{report}");
    for missing in list(&found["missing_functions"]) {
        assert!(missing["name"].as_str().is_some_and(|name| name.starts_with("nccl")), "{report}");
        assert!(missing["since"].is_string(), "{report}");
    }
    let library_section = &report["sections"][0];
    assert_eq!(library_section["name"], "library");
    // No function of its own version is missing.
    let is_ok = |finding: &Value| finding["level"] == "ok";
    assert!(list(&library_section["findings"]).iter().all(is_ok), "{library_section:#}");

    let (text, _) = run(nccl("doctor").env("LIBNCCL_PATH", &library), status(&report));
    assert!(text.starts_with(&format!("library\n  ok       {library} (LIBNCCL_PATH)\n")), "{text}");
    let release = text_of(&found["version"]);
    assert_has(&text, &[&format!("\n  ok       NCCL {release}, compiled with CUDA ")]);

    let mut command = nccl(&format!("env --json --library {library}"));
    let variables = json(&run(command.env("NCCL_SOCKET_IFNAME", "lo"), 0).0);
    let variables = list(&variables);
    assert!(variables.len() > 80, "{variables:?}");
    let set =
        variables.iter().find(|variable| variable["name"] == "NCCL_SOCKET_IFNAME").expect("it is known");
    assert_eq!(
        (&set["value"], &set["origin"], &set["known"]),
        (&"lo".into(), &"environment".into(), &true.into())
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

/// Copies the CPU backend to a file.
fn copy_backend(session: &Session, name: &str) -> PathBuf {
    session.write(name, fs::read(libnccl_test_support::shared_object("nccl_cpu")).expect("it is there"))
}

#[test]
fn doctor_that_needs_a_newer_version_fails() {
    let mut session = Session::new();
    let library = copy_backend(&session, "libnccl.so.2");
    let library = [("LIBNCCL_PATH", library.as_path())];
    for needed in ["2.32.3", "2.99.1"] {
        add_section(&mut session, "library", &library, &format!("--needs {needed}"));
    }
    run(nccl("doctor --needs 2.99.1").envs(library), 1);
    session.nccl("doctor --needs 2.27");
    session.check("doctor_needs");
}

/// The CPU backend imitates a PyTorch library that contains NCCL.
#[test]
fn doctor_finds_nccl_in_another_library_by_its_symbols() {
    let mut session = Session::new();
    let backend = copy_backend(&session, "libnccl.so.2");
    let torch = copy_backend(&session, "torch/lib/libtorch_cuda.so");
    let packages = session.path("");
    let environment = [("LIBNCCL_PATH", backend.as_path()), ("PYTHONPATH", &packages)];
    let table = printed(&mut doctor_in(&environment, ""));
    let copy = table.lines().find(|line| line.contains("which contains NCCL")).expect("a copy");
    session.add("# The CPU backend as libtorch_cuda.so", &format!("{copy}\n"));
    let report = json(&printed(&mut doctor_in(&environment, "--json")));
    let size = fs::metadata(&backend).expect("it is there").len();
    assert_eq!(report["library"]["size"], size, "{report}");
    assert!(report["library"]["build_id"].is_string() || report["library"]["build_id"].is_null(), "{report}");
    // Another program, without NCCL.
    fs::copy(NCCL, &torch).expect("it is writable");
    assert!(!printed(&mut doctor_in(&environment, "")).contains("which contains NCCL"));
    session.check("doctor_copies");
}

#[test]
fn doctor_reports_variables_that_the_cpu_backend_rejects() {
    let mut session = Session::new();
    let backend = copy_backend(&session, "libnccl.so.2");
    let mut environment = vec![("LIBNCCL_PATH", backend.as_path())];
    for name in ["PLANT", "FAILURES", "IGNORE", "STRICT", "STACKS", "TIMEOUT", "WARN_AFTER"] {
        environment.push((format!("LIBNCCL_CPU_{name}").leak(), Path::new("nonsense")));
    }
    assert!(!run(&mut doctor_in(&environment, ""), 0).0.contains("advisories"));
    add_section(&mut session, "variables", &environment, "");
    session.check("doctor_variables");
}

/// An invalid library ends its process, or prints text that is not a log.
#[test]
fn doctor_outlives_the_process_of_a_library() {
    let mut session = Session::new();
    let library = session.path("libnccl.so.2");
    for body in [
        "abort();",
        "_exit(3);",
        "fwrite(text, 1, sizeof text, stdout), fwrite(text, 1, sizeof text, stderr), _exit(3);",
    ] {
        let text = format!(
            "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
             static char text[1 << 22];\n\
             int ncclGetVersion(int *version) {{ *version = 22707; return 0; }}\n\
             int ncclGetUniqueId(void *id) {{\n\
                 for (size_t at = 0; at < sizeof text; at++) text[at] = rand();\n\
                 {body} return 0;\n\
             }}\n"
        );
        let source = session.write("nccl.c", text);
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]), 0);
        let text = printed(&mut doctor_in(&[("LIBNCCL_PATH", library.as_path())], ""));
        let line = text.lines().find(|line| line.contains("no unique id can be made: ")).expect("a problem");
        let (start, end) = line.split_once(": ").expect("a reason");
        // Its output precedes the reason.
        session.add(&format!("# {body}"), &format!("{start}: {}\n", end.rsplit("; ").next().unwrap_or(end)));
        assert_has(&text, &["the library makes no unique id; interfaces: "]);
    }
    session.check("doctor_outlives");
}

/// The kernel then keeps no exit status of the process that loads the library.
#[test]
fn doctor_started_with_sigchld_ignored_has_no_failure() {
    let session = Session::new();
    let library = session.path("libnccl.so.2");
    let source = session.write(
        "nccl.c",
        "int ncclGetVersion(int *version) { *version = 22707; return 0; }\n\
         int ncclGetUniqueId(void *id) { return 0; }\n",
    );
    run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]), 0);
    let mut doctor = Command::new("env");
    doctor.args(["--ignore-signal=CHLD", NCCL, "doctor", "--library"]).arg(&library);
    let text = printed(&mut doctor);
    assert_has(&text, &["a unique id can be made"]);
    assert!(!text.contains("did not end normally"), "{text}");
}

/// Runs as the user nobody, with these options of a file system in /dev/shm.
#[test]
#[ignore = "needs root, mount namespaces and `setpriv`"]
fn doctor_says_why_shared_memory_cannot_be_used() {
    let probe = Command::new("unshare").args(["--mount", "setpriv", "--reuid=65534", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: doctor_says_why_shared_memory_cannot_be_used, which needs root, mount namespaces and setpriv"
        );
        return;
    }
    for (options, expected) in [
        ("size=2g,mode=1777", "ok       /dev/shm: 2048 MiB"),
        ("size=2g,mode=777", "ok       /dev/shm: 2048 MiB"),
        ("size=2g,mode=1777,noexec", "ok       /dev/shm: 2048 MiB"),
        ("size=2g,mode=755", "warning  /dev/shm: this user cannot write there: Permission denied"),
        ("size=2g,mode=1770", "warning  /dev/shm: this user cannot write there: Permission denied"),
        ("size=2g,mode=1777,ro", "warning  /dev/shm: this user cannot write there: Read-only file system"),
        ("size=2g,mode=1777,nr_inodes=1", "warning  /dev/shm: 0 files of 1 can be made yet"),
        ("size=2g,mode=1777,nr_inodes=50", "warning  /dev/shm: 49 files of 50 can be made yet"),
        ("size=64m,mode=1777", "warning  /dev/shm: 64 MiB, too little"),
    ] {
        let script = format!(
            "mount -t tmpfs -o {options} tmpfs /dev/shm && exec setpriv --reuid=65534 --regid=65534 --clear-groups /proc/self/fd/3 \
             doctor 3<{NCCL}"
        );
        let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).env_clear().output();
        let output = output.expect("unshare starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains(&format!("  {expected}")),
            "{options}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

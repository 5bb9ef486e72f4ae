//! `nccl doctor`.

mod interfaces;
mod made_library;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{NCCL, assert_has, json, list, nccl, read, repository, run};

/// Runs with this name of a library. The exit status has to be `status`.
fn doctor(arguments: &str, library: &str, status: i32) -> String {
    run(nccl(&format!("doctor {arguments}")).env("LIBNCCL_PATH", library), status).0
}

/// Runs with nothing in the environment but these variables. Returns what is printed, whatever the exit status.
fn doctor_in(environment: &[(&str, &Path)], arguments: &str) -> String {
    let mut command = nccl(&format!("doctor {arguments}"));
    let output = command.env_clear().envs(environment.iter().copied()).output();
    String::from_utf8(output.expect("the program starts").stdout).expect("text")
}

/// Returns the advice, which the table must have below its findings.
fn advice(environment: &[(&str, &Path)], arguments: &str) -> Vec<String> {
    let report = json(&doctor_in(environment, &format!("{arguments} --json")));
    let advice: Vec<String> = list(&report["advice"]).iter().map(text_of).collect();
    let table = doctor_in(environment, arguments);
    assert!(!advice.is_empty(), "{table}");
    for line in &advice {
        assert_has(&table, &[&format!("\n           -> {line}\n")]);
    }
    advice
}

/// Returns whether this system has an NCCL of its own.
fn has_library() -> bool {
    !json(&doctor_in(&[], "--json"))["library"].is_null()
}

fn text_of(value: &Value) -> String {
    value.as_str().expect("a text").into()
}

#[test]
fn doctor_without_a_library_lists_the_search() {
    let text = doctor("", "/nonexistent", 1);
    assert!(text.starts_with("library\n  problem  no NCCL library could be loaded\n"), "{text}");
    assert_has(&text, &["\n  searched /nonexistent (LIBNCCL_PATH): "]);
}

/// The places of the search before those of RCCL.
const PLACES: [&str; 16] = [
    "LIBNCCL_PATH",
    "dynamic linker",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "python3 on PATH",
    "CONDA_PREFIX",
    "user's Python packages",
    "system's Python packages",
    "NCCL_HOME",
    "NCCL_ROOT",
    "NCCL_ROOT_DIR",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA's default directory",
    "NVHPC_ROOT",
    "HPC SDK's default directory",
];

#[test]
fn doctor_lists_every_place_even_if_it_is_empty() {
    if has_library() {
        return;
    }
    let report = json(&doctor_in(&[], "--json"));
    let tried = list(&report["tried"]);
    let mut sources: Vec<_> = tried.iter().map(|attempt| text_of(&attempt["source"])).collect();
    sources.dedup();
    let rccl = ["dynamic linker", "ROCm's Python packages", "ROCM_PATH", "ROCm's default directory"];
    assert_eq!(sources, [&PLACES[..], &rccl].concat());
    assert_eq!(tried[0], json!({ "source": "LIBNCCL_PATH", "path": null, "problem": "not set" }));
    assert!(tried.iter().all(|attempt| attempt["problem"].is_string()), "{report}");
    let places = [
        "  searched LIBNCCL_PATH: not set\n",
        "  searched VIRTUAL_ENV: not set\n",
        "  searched /usr/local/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2 (system's",
    ];
    assert_has(&doctor_in(&[], ""), &places);
}

#[test]
fn doctor_without_a_library_advises_to_install_one() {
    if has_library() {
        return;
    }
    let advice = advice(&[], "");
    assert!(advice[0].starts_with("install NCCL: pip install nvidia-nccl-cu12 "), "{advice:?}");
    assert_has(&advice[0], &["; or, if it is in another place, set LIBNCCL_PATH to its file; or, "]);
}

#[test]
fn doctor_with_a_wrong_named_library_advises_to_correct_the_name() {
    let nowhere = Path::new("/nonexistent");
    assert_eq!(
        advice(&[("LIBNCCL_PATH", nowhere)], "")[0],
        "set LIBNCCL_PATH to the file of an NCCL library, or unset it to search for one"
    );
    assert_eq!(
        advice(&[], "--library /nonexistent")[0],
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
    let home = advice(&[("NCCL_HOME", directory.path())], "");
    let linker = advice(&[("LD_LIBRARY_PATH", &lib)], "");
    assert_eq!(home[0], format!("repair or remove {} (NCCL_HOME)", file.display()));
    assert_eq!(linker[0], "repair or remove libnccl.so.2 (dynamic linker)");
    for advice in [home, linker] {
        assert!(advice[1].starts_with("install NCCL: "), "{advice:?}");
    }
}

/// It advised to set `LIBNCCL_PATH`, which was set, and took a library that the dynamic linker had found for absent.
#[test]
fn doctor_advises_to_install_what_a_library_needs() {
    if has_library() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    let lib = directory.path().join("lib");
    fs::create_dir(&lib).expect("it is writable");
    let compile = |name: &str, needed: Option<&Path>| {
        let (file, source) = (lib.join(name), lib.join("source.c"));
        fs::write(&source, "int function(void) { return 0; }").expect("it is writable");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", &format!("-Wl,-soname,{name}"), "-Wl,--no-as-needed", "-o"]);
        assert!(cc.args([&file, &source]).args(needed).status().expect("a C compiler, cc").success());
        file
    };
    let runtime = compile("libcudart.so.12", None);
    let file = compile("libnccl.so.2", Some(&runtime));
    fs::remove_file(runtime).expect("it is there");
    for advice in [
        advice(&[("LIBNCCL_PATH", &file)], ""),
        advice(&[], &format!("--library {}", file.display())),
        advice(&[("NCCL_HOME", directory.path())], ""),
        advice(&[("LD_LIBRARY_PATH", &lib)], ""),
    ] {
        assert_eq!(advice[0], "install libcudart.so.12, or add its folder to LD_LIBRARY_PATH", "{advice:?}");
        assert!(!advice.iter().any(|advice| advice.starts_with("set LIBNCCL_PATH")), "{advice:?}");
    }
}

#[test]
fn doctor_json_without_a_library_has_the_error_and_the_search() {
    let report = json(&doctor("--json", "/nonexistent", 1));
    assert!(report["library"].is_null(), "{report}");
    assert_eq!(report["error"], "no NCCL library could be loaded");
    assert_eq!(report["tried"][0]["source"], "LIBNCCL_PATH");
    assert_eq!(report["tried"][0]["path"], "/nonexistent");
    assert!(report["tried"][0]["problem"].is_string(), "{report}");
    assert_eq!(report["driver"]["library"], "libcuda.so.1");
    assert!(report["driver"]["loaded"].is_boolean(), "{report}");
    assert!(report["driver"]["gpus"].is_u64(), "{report}");
}

#[test]
fn doctor_with_a_named_library_tries_no_other() {
    let report = json(&doctor("--json --library /nowhere/libnccl.so.2", "/nonexistent", 1));
    assert_eq!(list(&report["tried"]).len(), 1, "{report}");
    assert_eq!(report["tried"][0]["path"], "/nowhere/libnccl.so.2");
}

/// Runs with the library that `LIBNCCL_TEST_LIBRARY` names.
#[test]
#[ignore = "needs a real NCCL, named by LIBNCCL_TEST_LIBRARY"]
fn doctor_describes_a_real_library() {
    let library = std::env::var("LIBNCCL_TEST_LIBRARY").expect("LIBNCCL_TEST_LIBRARY names an NCCL library");
    // Without a GPU, no job of it would start.
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
    // Nothing of its own release is missing.
    let is_ok = |finding: &Value| finding["level"] == "ok";
    assert!(list(&library_section["findings"]).iter().all(is_ok), "{library_section:#}");

    let text = doctor("", &library, status(&report));
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

/// The table of `nccl env`, for a library of its release.
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

#[test]
fn doctor_that_needs_a_newer_release_fails() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = folder.path().join("libnccl.so.2");
    fs::copy(libnccl_test_support::shared_object("nccl_cpu"), &library).expect("it is writable");
    let library = [("LIBNCCL_PATH", library.as_path())];
    let release = text_of(&json(&doctor_in(&library, "--json"))["library"]["version"]);
    let text = doctor_in(&library, &format!("--needs {release}"));
    assert_has(
        &text,
        &[&format!("\n  ok       NCCL {release} is not older than {release}, which --needs asks for\n")],
    );
    let text = run(nccl("doctor --needs 2.99.1").envs(library), 1).0;
    assert_has(
        &text,
        &[&format!("\n  problem  NCCL {release} is older than 2.99.1, which --needs asks for\n")],
    );
    let (_, error) = run(&mut nccl("doctor --needs 2.27"), 2);
    assert_has(&error, &["\"2.27\" is not an NCCL version; expected major.minor.patch"]);
}

/// The CPU backend takes the place of a library of PyTorch that contains NCCL.
#[test]
fn doctor_finds_nccl_in_another_library_by_its_symbols() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let backend = libnccl_test_support::shared_object("nccl_cpu");
    let file = folder.path().join("torch/lib/libtorch_cuda.so");
    fs::create_dir_all(file.parent().expect("a folder")).expect("it is writable");
    fs::copy(&backend, &file).expect("it is writable");
    let environment = [("LIBNCCL_PATH", backend.as_path()), ("PYTHONPATH", folder.path())];
    let path = fs::canonicalize(&file).expect("it is there");
    let text = format!("another copy: {}, which contains NCCL (libnccl's CPU backend)", path.display());
    assert_has(&doctor_in(&environment, ""), &[&format!("\n  ok       {text}\n")]);
    let report = json(&doctor_in(&environment, "--json"));
    let size = fs::metadata(&backend).expect("it is there").len();
    assert_eq!(report["library"]["size"], size, "{report}");
    assert!(report["library"]["build_id"].is_string() || report["library"]["build_id"].is_null(), "{report}");
    // Another program, without NCCL.
    fs::copy(NCCL, &file).expect("it is writable");
    assert!(!doctor_in(&environment, "").contains("which contains NCCL"));
}

#[test]
fn doctor_reports_variables_that_the_cpu_backend_rejects() {
    let backend = libnccl_test_support::shared_object("nccl_cpu");
    let mut environment = vec![("LIBNCCL_PATH", backend.as_path())];
    for name in ["PLANT", "FAILURES", "IGNORE", "STRICT", "STACKS", "TIMEOUT", "WARN_AFTER"] {
        let name = format!("LIBNCCL_CPU_{name}").leak();
        environment.push((name, Path::new("nonsense")));
    }
    let (text, _) = run(nccl("doctor").env_clear().envs(environment.iter().copied()), 0);
    for (name, _) in &environment[1..] {
        let lines = text.lines().filter(|line| line.starts_with("  warning  ") && line.contains(name));
        assert_eq!(lines.count(), 1, "{name}: {text}");
    }
    assert!(!text.contains("advisories"), "{text}");
}

/// A library that is none ends its process, or prints what is no log.
#[test]
fn doctor_outlives_the_process_of_a_library() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, library) = (folder.path().join("nccl.c"), folder.path().join("libnccl.so.2"));
    for (body, problem) in [
        ("abort();", "the process ended with signal: 6 (SIGABRT)"),
        ("_exit(3);", "the process ended with exit status: 3"),
        (
            "fwrite(text, 1, sizeof text, stdout), fwrite(text, 1, sizeof text, stderr), _exit(3);",
            "exit status: 3",
        ),
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
        fs::write(&source, text).expect("it is writable");
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]), 0);
        let text = doctor_in(&[("LIBNCCL_PATH", library.as_path())], "");
        let line = text.lines().find(|line| line.contains("no unique id can be made: ")).expect("a problem");
        assert!(line.starts_with("  problem  ") && line.ends_with(problem), "{line}");
        assert_has(&text, &["the library makes no unique id; interfaces: "]);
    }
}

/// Runs as nobody, with these options of a file system in /dev/shm.
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

//! Control characters of files, variables and libraries, which a terminal would obey, are printed as escapes.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{assert_has, assert_visible, nccl, read};
use crate::snapshot::Session;

const EVIL: &str = "\u{1b}[31m\u{9b}2J";
const ESCAPED: &str = r"\u001b[31m\u009b2J";

#[test]
fn path_of_the_library_is_printed_with_escapes() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join(EVIL).join("libnccl.so.2");
    fs::create_dir(library.parent().unwrap()).unwrap();
    fs::copy(libnccl_test_support::shared_object("nccl_cpu"), &library).unwrap();
    let svg = directory.path().join("pairs.svg");
    for arguments in [
        "bench all_reduce --ranks 2 -b 8 -e 8 -n 1",
        "bench all_reduce --ranks 2 -b 8 -e 8 -n 1 --processes",
        "bench all_reduce --ranks 2 -b 8 -e 8 -n 1 --json",
        "bench pairs --ranks 2 -s 8K -n 10",
        "bench pairs --ranks 2 -s 8K -n 10 --json",
        &format!("bench pairs --ranks 2 -s 8K -n 10 --svg {}", svg.display()),
        "env",
        "doctor",
        "doctor --json",
    ] {
        let stdout = check_visible(nccl(arguments).arg("--library").arg(&library));
        assert_has(&stdout, &[ESCAPED]);
    }
    let picture = read(&svg);
    assert_visible(&picture);
    assert_has(&picture, &[ESCAPED]);
}

/// Clap would print them unchanged. The note of a recorder has the job's name.
#[test]
fn refused_arguments_are_printed_with_escapes() {
    let mut session = Session::new();
    let trace = libnccl_test_support::shared_object("nccl_trace");
    session.redact("[TRACE]", trace.to_str().unwrap());
    let variables = [("EVIL", Path::new(EVIL)), ("TRACE", &trace)];
    session.replay("escapes", |session, line| session.shell_with(line, &variables));
}

#[test]
fn variables_are_printed_with_escapes() {
    for arguments in ["doctor", "doctor --json", "env", "env --json"] {
        let name = format!("NCCL_{EVIL}");
        let mut command = nccl(arguments);
        for name in ["NCCL_ALGO", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_TOPO_FILE", &name] {
            command.env(name, EVIL);
        }
        check_visible(&mut command);
    }
}

/// Runs a command, which must print no control characters. Returns stdout.
fn check_visible(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_visible(&(stderr + &stdout));
    stdout
}

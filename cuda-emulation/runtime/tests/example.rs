//! The first example of the README, without NVIDIA's headers.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

fn run(directory: &Path, argument: Option<&str>) -> Output {
    let mut program = Command::new(directory.join("streams"));
    program.args(argument).env("LD_LIBRARY_PATH", directory).env_remove("LIBNCCL_CPU_RACES");
    program.output().expect("the program runs")
}

#[test]
fn program_with_streams_events_and_copies_runs_and_its_race_is_reported() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let own = std::env::current_exe().expect("the path of this test");
    for (built, name) in [("libcuda_cpu.so", "libcuda.so.1"), ("libcudart_cpu.so", "libcudart.so.12")] {
        let built = own.with_file_name(built);
        assert!(built.exists(), "{} is not built", built.display());
        symlink(built, directory.path().join(name)).expect("a link");
    }
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-g", "-I"]).arg(format!("{SOURCES}/include"));
    cc.arg(format!("{SOURCES}/streams.c")).arg("-o").arg(directory.path().join("streams"));
    cc.arg("-L").arg(directory.path()).args(["-l:libcudart.so.12", "-Wl,--allow-shlib-undefined"]);
    let compiled = cc.output().expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    let right = run(directory.path(), None);
    assert_eq!(String::from_utf8_lossy(&right.stdout), "the last byte is 7\n");
    assert_eq!(String::from_utf8_lossy(&right.stderr), "");
    let wrong = run(directory.path(), Some("without the wait"));
    let report = String::from_utf8_lossy(&wrong.stderr);
    assert!(report.contains("race in allocation") && report.contains("[race]"), "{report}");
    for function in ["cuMemsetD8Async", "cuMemcpyDtoHAsync_v2"] {
        assert!(report.contains(function), "no {function} in {report}");
    }
}

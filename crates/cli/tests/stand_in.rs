//! Runs `nccl` as a user does who has put the stand-ins for NCCL and CUDA first.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::{Value, json};

/// Returns a folder with the shared objects, which are built first: Cargo builds no cdylib of other packages for tests.
fn shared_objects() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-so");
        let mut xtask = Command::new(env!("CARGO"));
        xtask.args(["run", "--quiet", "--package", "xtask", "--", "cpu-so", "--debug"]).arg(&folder);
        let output = xtask.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    });
    &FOLDER
}

/// Runs with so many devices, and nothing else in the environment.
fn nccl(devices: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.args(arguments).env_clear().env("LD_LIBRARY_PATH", shared_objects());
    command.env("LIBNCCL_CPU_DEVICES", devices).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the stand-in's file and what it is called.
fn stand_in() -> (PathBuf, String) {
    let file = shared_objects().join("libcuda.so.1");
    let name = format!("{}, libnccl's stand-in for CUDA on the CPU", file.display());
    (file, name)
}

#[test]
fn doctor_names_the_stand_in() {
    let (file, name) = stand_in();
    let output = nccl("3", &["doctor"]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table}");
    for line in [
        format!("driver\n  ok       {name}, devices: 3\n"),
        ", for device memory; ".into(),
        ": a job would start here\n".into(),
    ] {
        assert!(table.contains(&line), "{line}\nis not in\n{table}");
    }
    let report: Value = serde_json::from_slice(&nccl("3", &["doctor", "--json"]).stdout).expect("JSON");
    let expected =
        json!({ "library": "libcuda.so.1", "loaded": true, "stand_in": file, "gpus": 3, "problem": null });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&report["driver"][field], value, "{field}");
    }
}

#[test]
fn doctor_names_the_stand_in_without_devices() {
    let table = text(&nccl("0", &["doctor"]).stdout);
    let line = format!("\n  problem  {}: ", stand_in().1);
    assert!(table.contains(&line), "{line}\nis not in\n{table}");
}

#[test]
fn bench_names_the_stand_in_if_it_uses_devices() {
    let line = format!("# CUDA driver: {}, devices: 2\n", stand_in().1);
    let bench = |arguments: &[&str]| {
        let output = nccl("2", &[&["bench", "all_reduce", "--ranks", "2", "-e", "8"], arguments].concat());
        let table = text(&output.stdout);
        assert!(output.status.success(), "{table}{}", text(&output.stderr));
        table
    };
    let (on_devices, on_host) = (bench(&[]), bench(&["--cpu"]));
    assert!(on_devices.contains(&line), "{line}\nis not in\n{on_devices}");
    assert!(on_devices.contains("] libnccl CPU stand-in 1"), "{on_devices}");
    assert!(!on_host.contains("stand-in"), "{on_host}");
}

#[test]
fn run_puts_the_cpu_implementation_before_other_libraries() {
    let run = |folder: &Path, program: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
        command.args(["run", "-n", "2"]).arg(format!("--cpu={}", folder.display())).arg("--").args(program);
        command.env_clear().env("LD_LIBRARY_PATH", "/nonexistent").output().expect("the program starts")
    };
    let output = run(
        shared_objects(),
        &[env!("CARGO_BIN_EXE_nccl"), "bench", "all_reduce", "-e", "8", "--iters", "1"],
    );
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table}{}", text(&output.stderr));
    assert!(table.contains("[0] #  Rank  1 Group  0 Pid"), "{table}");
    assert!(table.contains("] libnccl CPU stand-in 1"), "{table}");

    let missing = run(Path::new("/nonexistent"), &["/bin/true"]);
    assert_eq!(missing.status.code(), Some(1));
    let error = text(&missing.stderr);
    assert!(error.contains("error: no libnccl.so.2 in /nonexistent; "), "{error}");
}

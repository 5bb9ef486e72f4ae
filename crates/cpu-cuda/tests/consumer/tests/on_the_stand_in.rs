//! The programs on the stand-in for CUDA and the CPU implementation of NCCL, which are found as a user installs them: in a
//! folder on the dynamic linker's path.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Time after which a program counts as hung.
const LIMIT: Duration = Duration::from_secs(120);

/// A folder with the libraries.
static LIBRARIES: LazyLock<TempDir> = LazyLock::new(|| {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libraries");
    let mut cargo = Command::new(env!("CARGO"));
    // Cargo builds no cdylib for tests.
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "libnccl-cpu-so",
        "--package",
        "libnccl-cpu-cuda",
        "--target-dir",
    ]);
    let built =
        cargo.arg(&target).current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo can be run");
    assert!(built.success(), "the libraries cannot be built");
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (file, name, short) in
        [("libnccl_cpu.so", "libnccl.so.2", "libnccl.so"), ("libcuda_cpu.so", "libcuda.so.1", "libcuda.so")]
    {
        fs::copy(target.join("debug").join(file), folder.path().join(name)).expect("a library can be copied");
        symlink(name, folder.path().join(short)).expect("a link");
    }
    folder
});

/// Runs a program, which has to print `ok` and to succeed in time, and returns what it reported.
fn run(program: &str, argument: &str) -> String {
    let mut command = Command::new(program);
    command.arg(argument).env("LD_LIBRARY_PATH", LIBRARIES.path()).env("LIBNCCL_CPU_WARN_AFTER", "0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let start = Instant::now();
    while child.try_wait().expect("the program's state").is_none() {
        if start.elapsed() > LIMIT {
            child.kill().expect("it can be killed");
            let Output { stderr, .. } = child.wait_with_output().expect("its output");
            panic!("{argument} hangs: {}", String::from_utf8_lossy(&stderr));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let Output { status, stdout, stderr } = child.wait_with_output().expect("its output");
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.success(), "{argument}: {status}\n{errors}");
    assert_eq!(String::from_utf8_lossy(&stdout), "ok\n", "{errors}");
    errors
}

fn collectives(devices: &str) {
    assert_eq!(run(env!("CARGO_BIN_EXE_libnccl-cuda-consumer"), devices), "");
}

fn asynchronous(name: &str) -> String {
    run(env!("CARGO_BIN_EXE_asynchronous"), name)
}

#[test]
fn collectives_and_messages_of_two_devices_have_the_right_values() {
    collectives("2");
}

#[test]
fn collectives_and_messages_of_three_devices_have_the_right_values() {
    collectives("3");
}

#[test]
fn collectives_and_messages_of_eight_devices_have_the_right_values() {
    collectives("8");
}

#[test]
fn race_with_a_collective_is_reported_with_its_rank_and_call() {
    let report = asynchronous("copy_beside_a_collective");
    let call = format!("ncclAllReduce(count {}, ncclFloat32, ncclSum), rank 0 of 2, call 1", 1 << 20);
    assert!(report.contains(&call) && report.contains("cuMemcpyDtoDAsync"), "{report}");
}

/// Defines a test for each program that needs asynchrony and reports nothing.
macro_rules! asynchronous {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            assert_eq!(asynchronous(stringify!($name)), "");
        }
    )*};
}

asynchronous! {
    collective_that_the_host_waits_beside,
    send_that_the_host_waits_beside,
    opposite_directions_on_two_streams,
    two_communicators_in_different_orders,
    nonblocking_is_done_when_enqueued,
    abort_of_an_operation_without_a_peer,
    destroy_with_work_enqueued,
    two_streams_of_one_communicator,
    group_on_two_streams,
    host_memory_is_refused,
    two_ranks_on_one_device,
    scalar_in_device_memory,
}

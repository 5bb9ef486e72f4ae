//! Both forms of each program, on the stand-in for CUDA and the CPU implementation of NCCL.

use std::process::Command;
use std::sync::LazyLock;

use libnccl_test_support::{install, time_limit};
use tempfile::TempDir;

/// A folder with the libraries.
static LIBRARIES: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    install(folder.path());
    folder
});

/// Checks that both forms of a program print the same, and that no synchronisation is missing.
fn check(program: &str, expected: &str) {
    for form in ["before", "after"] {
        let mut command = Command::new(program);
        command.arg(form).env("LD_LIBRARY_PATH", LIBRARIES.path()).env("LIBNCCL_CPU_RACES", "error");
        command.env_remove("LIBNCCL_PATH").env("LIBNCCL_CPU_WARN_AFTER", "0");
        assert_eq!(time_limit::run(&mut command), (expected.into(), String::new()), "{form}");
    }
}

#[test]
fn server_has_the_same_tensors_before_and_after() {
    let device = |device: usize, passed: u8| {
        format!(
            "device {device}, f32: [4.0, 6.0, -15.0]\n\
             device {device}, i64: [4.0, 6.0, -14.0]\n\
             device {device}, bf16: [4.0, 6.0, -15.0]\n\
             device {device}, passed: {:?}\n",
            [passed; 4]
        )
    };
    check(
        env!("CARGO_BIN_EXE_server"),
        &[device(0, 255), device(1, 0), device(2, 255), device(3, 2)].concat(),
    );
}

#[test]
fn custom_op_has_the_same_outputs_before_and_after() {
    let output = "[-2.0, -13.0, 1.0, 15.0, -1.0, -2.0, -13.0, 1.0]";
    let ranks = (0..4).map(|rank| format!("rank {rank}, f32: {output}, f64: {output}\n"));
    check(env!("CARGO_BIN_EXE_custom_op"), &ranks.collect::<String>());
}

#[test]
fn bootstrap_has_the_same_blocks_before_and_after() {
    // The first two blocks are those of worker 0, the third is that of worker 2.
    let blocks = "[0, 1, 2, 3, 4, 5, 6, 7, 108, 109, 110, 111]";
    let workers = (0..3).map(|rank| format!("worker {rank}, of another library ({rank}, 3): {blocks}\n"));
    check(env!("CARGO_BIN_EXE_bootstrap"), &workers.collect::<String>());
}

#[test]
fn exchange_has_the_same_shares_before_and_after() {
    let share = |first: u32| (first..first + 8).collect::<Vec<_>>();
    let parties = [(0, 200), (1, 0), (2, 100)].map(|(party, codes)| {
        format!("party {party} received {:?} and {:?}\n", share(codes), share(codes + 50))
    });
    check(env!("CARGO_BIN_EXE_exchange"), &parties.concat());
}

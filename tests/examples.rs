//! The programs of `examples/`, run as a user runs them: on this machine's GPUs, or on the CPU backend.
#![cfg(target_os = "linux")] // Elsewhere there is no CPU backend.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Returns what an example prints, which must succeed.
fn run(example: &str, ranks: &str) -> String {
    printed(execute(example, &[ranks], None))
}

fn printed(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The variables of an example that runs on the CUDA emulation.
type Emulated<'a> = &'a [(&'a str, &'a str)];

/// Runs an example in a directory that is empty, or has the emulation, whose libraries it finds first.
fn execute(example: &str, arguments: &[&str], emulated: Option<Emulated<'_>>) -> Output {
    // target/debug/deps/examples-... and target/debug/examples/NAME.
    let mut program: PathBuf = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples");
    program.push(example);
    assert!(program.exists(), "cargo build --examples makes {}", program.display());
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    if let Some(variables) = emulated {
        libnccl_test_support::install(directory.path());
        command.env("LD_LIBRARY_PATH", directory.path()).env_remove("LIBNCCL_PATH");
        command.envs(variables.iter().copied());
    }
    command.args(arguments).current_dir(&directory).output().unwrap()
}

#[test]
fn all_reduce_sums_over_ranks() {
    assert_eq!(run("all_reduce", "3"), "each of 3 ranks has [3.0, 3.0]\n");
}

#[cfg(feature = "cudarc")]
#[test]
fn slices_of_cudarc_are_summed_and_gathered() {
    let expected = "each of 4 ranks has the norm 146087, and 146087 was expected\n";
    assert_eq!(printed(execute("cudarc", &["4"], Some(&[]))), expected);
}

#[cfg(feature = "cudarc")]
#[test]
fn late_rank_is_an_error_of_synchronize_before_a_copy_waits_for_it() {
    let variables = [
        ("LIBNCCL_CPU_PLANT", "slow:1:60000000"),
        ("LIBNCCL_CPU_TIMEOUT", "0.5"),
        // The copy would not fail.
        ("LIBNCCL_CPU_FAILURES", "report"),
    ];
    let output = execute("cudarc", &["2"], Some(&variables));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && complaint.contains("synchronize"), "{}\n{complaint}", output.status);
}

#[test]
fn losses_of_two_ranks_equal_one_rank() {
    let printed = run("ddp", "2");
    assert!(printed.contains("largest difference of a step: 0.0e0 of the loss"), "{printed}");
    assert!(printed.contains("target/ddp.svg"), "{printed}");
}

#[test]
fn losses_of_four_ranks_equal_one_rank_within_the_bound() {
    run("ddp", "4");
}

#[test]
fn ranks_without_the_killed_one_complete_all_steps() {
    let printed = run("elastic", "4");
    assert!(printed.contains("step 3: 4 ranks\nstep 4: 3 ranks\n"), "{printed}");
    assert!(printed.ends_with("step 8: 3 ranks\n"), "{printed}");
}

/// The steps before and after rank 3, whose number is 4, is lost.
fn steps(first: u32, last: u32, sum: u32, ranks: u32) -> String {
    (first..=last).map(|step| format!("step {step}: sum {sum} of {ranks} ranks\n")).collect()
}

#[test]
fn killed_rank_is_replaced_after_all_have_aborted_or_by_growing() {
    for recipe in ["restart", "replace"] {
        let expected =
            [steps(1, 3, 10, 4), "rank 3 of 4 ended: signal: 9 (SIGKILL)\n".to_owned(), steps(4, 6, 10, 4)];
        assert_eq!(printed(execute("recovery", &["4", recipe], None)), expected.concat(), "{recipe}");
    }
}

#[test]
fn ranks_continue_without_the_revoking_rank() {
    let expected = [steps(1, 3, 10, 4), "rank 3 of 4 ended: exit status: 0\n".to_owned(), steps(4, 6, 6, 3)];
    assert_eq!(printed(execute("recovery", &["4", "revoke"], None)), expected.concat());
}

#[test]
fn ranks_sharing_a_device_continue_without_the_killed_one() {
    let variables = [("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("LIBNCCL_CPU_DEVICES", "1")];
    let output = execute("recovery", &["4", "replace"], Some(&variables));
    let [printed, notes] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(notes.contains(" on 1 GPUs") && printed.ends_with(&steps(4, 6, 10, 4)), "{printed}{notes}");
}

#[test]
fn micro_batches_go_through_all_stages() {
    assert_eq!(run("pipeline", "4"), "8 micro-batches of 1024 values went through 4 stages\n");
}

#[test]
fn divided_layer_computes_the_whole_one() {
    run("tensor_parallel", "4");
}

#[test]
fn ranks_in_separate_processes_sum_their_numbers() {
    let expected = "4 ranks, by RANK and WORLD_SIZE: the sum of their numbers is 6\n";
    assert_eq!(run("multi_process", "4"), expected);
}

#[test]
fn edges_put_into_windows_give_the_whole_rod() {
    run("windows", "4");
}

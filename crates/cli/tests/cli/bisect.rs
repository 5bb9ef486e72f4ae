//! `nccl bench bisect`.

use std::thread;

use serde_json::json;

use crate::common::{self, NCCL, assert_frame, assert_has, bench, json, list, nccl, run};

/// The factor of a slow group: the machine does other work, which makes some groups slower than others.
const SLOWER: &str = "--slower 25";

#[test]
fn planted_slow_and_wrong_ranks_of_eight_are_named() {
    let mut command = bench(&format!("bisect --ranks 8 -s 4K -n 3 {SLOWER} --json"));
    let (stdout, stderr) = run(command.env("LIBNCCL_CPU_PLANT", "slow:3:30000,wrong:5"), 1);
    let verdict = json(&stdout);
    assert_eq!((&verdict["slow"], &verdict["wrong"]), (&json!([3]), &json!([5])), "{stdout}");
    assert_eq!((&verdict["slow_pairs"], &verdict["wrong_pairs"]), (&json!([]), &json!([])), "{stdout}");
    let sizes: Vec<usize> = list(&verdict["stages"]).iter().map(|stage| list(stage).len()).collect();
    assert_eq!(sizes, [1, 2, 4, 4], "{stdout}");
    let wrong = "; rank 5 is wrong: the sums of all its pairs have elements that are wrong";
    assert_frame(stderr.lines().last().expect("an error"), "error: rank 3 is slow: ", wrong);
}

#[test]
fn wrong_rank_is_named_among_processes_and_under_a_launcher() {
    let sentence = "rank 2 is wrong: the sums of all its pairs have elements that are wrong";
    let arguments = format!("bench bisect --cpu -s 4K -n 3 {SLOWER}00");
    let mut processes = nccl(&format!("{arguments} --ranks 5 --processes"));
    let (stdout, stderr) = run(processes.env("LIBNCCL_CPU_PLANT", "wrong:2"), 1);
    assert_has(&stdout, &[&format!("# {sentence}\n")]);
    assert!(stderr.ends_with(&format!("error: {sentence}\n")), "{stderr}");
    let mut launcher = nccl("run -n 4 --");
    launcher.arg(NCCL).args(arguments.split(' ')).env("LIBNCCL_CPU_PLANT", "wrong:2");
    assert_has(&run(&mut launcher, 1).0, &[sentence]);
}

#[test]
fn hanging_rank_is_named() {
    let hour = 3_600_000_000_u64;
    let check = |launch: &str| {
        let mut command = bench(&format!("bisect --ranks 4 -s 4K -n 3 --deadline 2 --json {launch}"));
        let (stdout, stderr) = run(command.env("LIBNCCL_CPU_PLANT", format!("slow:1:{hour}")), 1);
        assert_eq!(json(&stdout)["hanging"], json!([1]), "{stdout}");
        assert_has(&stderr, &["error: rank 1 hangs: it has finished with none of the ranks {0, 2} alone"]);
    };
    thread::scope(|scope| {
        for launch in ["", "--processes"] {
            scope.spawn(move || check(launch));
        }
    });
}

/// Interrupts `nccl bench bisect` with four ranks when the progress bar shows this text. Returns stdout and stderr.
fn interrupted(arguments: &str, plant: &str, shown: &str) -> (String, String) {
    let mut command = bench(&format!("bisect -s 4K -n 3 --ranks 4 {arguments}"));
    command.env("LIBNCCL_CPU_PLANT", plant);
    common::interrupted(command, shown)
}

#[test]
fn signal_prints_the_groups_that_the_progress_bar_has_counted() {
    // Each call of the last rank takes 0.2 s, and a stage more than one.
    let interrupted = |arguments: &str, shown| interrupted(arguments, "slow:3:200000", shown).0;
    let check = |launch| {
        let stdout = interrupted(launch, "1/3 stages");
        assert_has(&stdout, &["4 ranks (", "\n  0-3 "]);
        let end = "\n# Interrupted: 1 of 3 stages are measured, and there is no verdict\n";
        assert!(stdout.ends_with(end), "{stdout}");
        let stdout = interrupted(&format!("--json {launch}"), "2/3 stages");
        let measured = json(&stdout);
        assert_eq!(list(&measured["stages"]).len(), 2, "{stdout}");
        assert_eq!((&measured["interrupted"], measured.get("slow")), (&json!(true), None), "{stdout}");
    };
    thread::scope(|scope| {
        scope.spawn(|| check(""));
        check("--processes");
    });
}

#[test]
fn signal_while_ranks_hang_says_so() {
    let (stdout, stderr) = interrupted("--deadline 1", "slow:1:3600000000", "1/3 stages");
    assert_eq!(stdout, "");
    assert_has(&stderr, &["all ranks together hang; interrupted before one was named"]);
}

#[test]
fn healthy_ranks_are_a_success() {
    for ranks in [2, 3, 4] {
        let (stdout, stderr) = run(&mut bench(&format!("bisect --ranks {ranks} -s 4K -n 3 {SLOWER}00")), 0);
        assert!(stdout.ends_with("# no rank is slow or wrong\n"), "{stdout}");
        assert_eq!(stderr, "");
    }
    let (_, stderr) = run(&mut bench("bisect --ranks 2 --slower 1"), 2);
    assert_has(&stderr, &["expected a number above 1"]);
}

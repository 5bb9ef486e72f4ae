//! Runs `nccl bench bisect` as a user does.

use std::process::{Command, Output};

use serde_json::{Value, json};

/// Runs the command with planted faults. Returns what it prints, and the error. The status has to be `status`.
fn bisect(launcher: &[&str], arguments: &str, faults: &str, status: i32) -> (String, String) {
    let program = env!("CARGO_BIN_EXE_nccl");
    let mut command = Command::new(program);
    if !launcher.is_empty() {
        command.args(launcher).arg(program);
    }
    command.args(["bench", "bisect", "--cpu"]).args(arguments.split_whitespace());
    if !faults.is_empty() {
        command.env("LIBNCCL_CPU_PLANT", faults);
    }
    let Output { status: ended, stdout, stderr } = command.output().expect("the program starts");
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(ended.code(), Some(status), "{arguments}\n{stdout}{stderr}");
    (stdout, stderr)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The factor of a slow group: the machine does other work, which makes some groups slower than others.
const SLOWER: &str = "--slower 25";

#[test]
fn planted_slow_and_wrong_ranks_of_eight_are_named() {
    let arguments = format!("--ranks 8 -s 4K -n 5 {SLOWER} --json");
    let (stdout, stderr) = bisect(&[], &arguments, "slow:3:30000,wrong:5", 1);
    let verdict = json(&stdout);
    assert_eq!((&verdict["slow"], &verdict["wrong"]), (&json!([3]), &json!([5])), "{stdout}");
    assert_eq!((&verdict["slow_pairs"], &verdict["wrong_pairs"]), (&json!([]), &json!([])), "{stdout}");
    let sizes: Vec<usize> = verdict["stages"]
        .as_array()
        .expect("stages")
        .iter()
        .map(|stage| stage.as_array().unwrap().len())
        .collect();
    assert_eq!(sizes, [1, 2, 4, 4], "{stdout}");
    let error = stderr.lines().last().expect("an error");
    assert!(error.starts_with("error: rank 3 is slow: "), "{stderr}");
    assert!(
        error.ends_with("; rank 5 is wrong: the sums of all its pairs have elements that are wrong"),
        "{stderr}"
    );
}

#[test]
fn wrong_rank_is_named_among_processes_and_under_a_launcher() {
    let sentence = "rank 2 is wrong: the sums of all its pairs have elements that are wrong";
    let ranks = format!("-s 4K -n 3 {SLOWER}00");
    let (stdout, stderr) = bisect(&[], &format!("--ranks 5 --processes {ranks}"), "wrong:2", 1);
    assert!(stdout.contains(&format!("# {sentence}\n")), "{stdout}");
    assert!(stderr.ends_with(&format!("error: {sentence}\n")), "{stderr}");
    let (stdout, _) = bisect(&["run", "-n", "4", "--"], &ranks, "wrong:2", 1);
    assert!(stdout.contains(sentence), "{stdout}");
}

#[test]
fn hanging_rank_is_named() {
    let hour = 3_600_000_000_u64;
    for launch in ["", "--processes"] {
        let arguments = format!("--ranks 4 -s 4K -n 3 --deadline 2 --json {launch}");
        let (stdout, stderr) = bisect(&[], &arguments, &format!("slow:1:{hour}"), 1);
        assert_eq!(json(&stdout)["hanging"], json!([1]), "{stdout}");
        assert!(
            stderr.contains("error: rank 1 hangs: it has finished with none of the ranks {0, 2} alone"),
            "{stderr}"
        );
    }
}

#[test]
fn healthy_ranks_are_a_success() {
    for ranks in [2, 3, 4] {
        let (stdout, stderr) = bisect(&[], &format!("--ranks {ranks} -s 4K -n 3 {SLOWER}00"), "", 0);
        assert!(stdout.ends_with("# no rank is slow or wrong\n"), "{stdout}");
        assert_eq!(stderr, "");
    }
    let (_, stderr) = bisect(&[], "--ranks 2 --slower 1", "", 2);
    assert!(stderr.contains("expected a number above 1"), "{stderr}");
}

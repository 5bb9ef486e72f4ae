//! Commands that read randomly changed files: they succeed or fail quickly, with bounded memory.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libnccl_test_support::random_inputs::{Random, inputs};
use serde_json::{Value, json};

use crate::common::{NCCL, bench, run};
use crate::recordings::{communicator, recording, records, with};

/// The time limit for a file on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs the tool with little memory; it must exit without a panic.
#[track_caller]
fn check(directory: &Path, arguments: &str, input: usize) {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 2000000; exec \"$0\" \"$@\"", NCCL]).args(arguments.split(' '));
    let began = Instant::now();
    let output = command.current_dir(directory).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert!(
        code.is_some_and(|code| code != 101)
            && output.status.signal().is_none()
            && !printed.contains("panicked"),
        "input {input}, in {}: {} {printed}",
        directory.display(),
        output.status
    );
    assert!(began.elapsed() < LIMIT, "input {input}: {:?}", began.elapsed());
}

/// Writes a document with some changed numbers and texts, or some changed bytes.
fn write(file: &Path, document: &Value, random: &mut Random) {
    const VALUES: &str = r#"0 1 -1 18446744073709551615 -9223372036854775808 1e308 null "" "\u001b[2J" [] {} 1000000000000 "all_reduce""#;
    let values: Vec<_> = VALUES.split(' ').collect();
    let mut text = document.to_string();
    if random.below(4) == 0 {
        let mut bytes = text.into_bytes();
        random.change_all(&mut bytes);
        return fs::write(file, bytes).unwrap();
    }
    for _ in 0..=random.below(3) {
        let starts: Vec<usize> = text.match_indices(':').map(|(at, _)| at + 1).collect();
        let start = starts[random.below(starts.len())];
        let length = text[start..].find([',', '}', ']']).unwrap_or(0);
        text.replace_range(start..start + length, values[random.below(values.len())]);
    }
    fs::write(file, text).unwrap();
}

fn sample(rank: usize) -> Value {
    let records = records(["all_reduce >1 broadcast?", "all_reduce <0 broadcast?"][rank]);
    let own = with(communicator("c0", rank, 2, &records), json!({ "name": "data", "count": 3 }));
    with(recording(rank, &[own]), json!({ "host": "node1" }))
}

#[test]
fn random_recordings_are_compared_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random(41);
    for input in inputs(60) {
        for (rank, file) in ["a.json", "b.json"].into_iter().enumerate() {
            write(&directory.path().join(file), &sample(rank), &mut random);
        }
        let html = if random.below(3) == 0 { " --html page.html" } else { "" };
        check(directory.path(), &format!("recorder diff a.json b.json{html}"), input);
    }
}

#[test]
fn random_results_are_compared_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    run(bench("all_reduce --ranks 2 -b 8 -e 64 -f 8 -n 1 --json=good.json").current_dir(directory.path()), 0);
    let good: Value = serde_json::from_slice(&fs::read(directory.path().join("good.json")).unwrap()).unwrap();
    let mut random = Random(43);
    for input in inputs(60) {
        for file in ["a.json", "b.json"] {
            write(&directory.path().join(file), &good, &mut random);
        }
        check(
            directory.path(),
            ["bench compare a.json b.json", "bench compare good.json b.json --json"][input % 2],
            input,
        );
    }
}

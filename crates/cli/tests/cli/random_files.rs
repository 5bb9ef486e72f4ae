//! Files that commands read, valid ones with changes: a result or an error, soon, and in bounded memory.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libnccl_test_support::random_inputs::{Random, inputs};
use serde_json::{Value, json};

use crate::common::{NCCL, bench, run};

/// The time for a file, on a machine with other work.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs the tool with little memory; it has to end by itself, without a panic.
#[track_caller]
fn check(folder: &Path, arguments: &str, input: usize) {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 2000000; exec \"$0\" \"$@\"", NCCL]).args(arguments.split(' '));
    let began = Instant::now();
    let output = command.current_dir(folder).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert!(
        code.is_some_and(|code| code != 101)
            && output.status.signal().is_none()
            && !printed.contains("panicked"),
        "input {input}, in {}: {} {printed}",
        folder.display(),
        output.status
    );
    assert!(began.elapsed() < LIMIT, "input {input}: {:?}", began.elapsed());
}

/// Changes values that are anywhere in a document.
fn change(document: &mut Value, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let mut place = &mut *document;
        loop {
            let length = match &*place {
                Value::Array(values) => values.len(),
                Value::Object(fields) => fields.len(),
                _ => 0,
            };
            if length == 0 || random.below(12) == 0 {
                break;
            }
            let index = random.below(length);
            place = match place {
                Value::Array(values) => &mut values[index],
                Value::Object(fields) => fields.iter_mut().nth(index).unwrap().1,
                _ => unreachable!("a value without parts"),
            };
        }
        let copy = place.clone();
        match (random.below(10), &mut *place) {
            (0, Value::Array(values)) => values.push(copy),
            (1, Value::Array(values)) => drop(values.pop()),
            (choice, place) => {
                let values = json!([
                    0,
                    1,
                    -1,
                    u64::MAX,
                    i64::MIN,
                    1e308,
                    1e-308,
                    null,
                    "",
                    "\u{1b}[2J\n",
                    [],
                    {},
                    true,
                    1_000_000_000_000_u64,
                    random.below(5),
                    "all_reduce",
                    copy,
                ]);
                let values = values.as_array().unwrap();
                *place = values[(choice + random.below(values.len())) % values.len()].clone();
            }
        }
    }
}

/// Writes a document with changes of its values, or of its bytes.
fn write(file: &Path, document: &Value, random: &mut Random) {
    let mut document = document.clone();
    let are_values_changed = random.below(4) > 0;
    if are_values_changed {
        change(&mut document, random);
    }
    let mut bytes = document.to_string().into_bytes();
    if !are_values_changed {
        random.change_all(&mut bytes);
    }
    fs::write(file, bytes).unwrap();
}

fn recording(rank: usize) -> Value {
    let call = |number: usize, operation: &str, state: &str| {
        let collective = (!matches!(operation, "send" | "recv")).then_some(number);
        json!({
            "number": number, "collective": collective, "message": collective.is_none().then_some(1),
            "operation": operation, "data_type": "float", "sent": 4, "received": 4,
            "peer": collective.is_none().then_some(1 - rank), "source": null, "group": null,
            "site": { "file": "train.rs", "line": number, "column": 5 }, "stream": 0, "queued_ns": 1000 * number,
            "completed_ns": null, "state": state,
        })
    };
    let message = if rank == 0 { "send" } else { "recv" };
    json!({
        "format": "libnccl recorder", "version": 1, "reason": "timeout", "time_ns": 2_000_000, "process": 100 + rank,
        "host": "node1", "nccl": "2.32.3",
        "communicators": [{
            "id": "c0", "name": "data", "rank": rank, "size": 2, "count": 3, "records": [
                call(1, "all_reduce", "completed"), call(2, message, "completed"), call(3, "broadcast", "called"),
            ],
        }],
    })
}

#[test]
fn random_recordings_are_compared_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(41);
    for input in inputs(60) {
        for (rank, file) in ["a.json", "b.json"].into_iter().enumerate() {
            write(&folder.path().join(file), &recording(rank), &mut random);
        }
        let html = if random.below(3) == 0 { " --html page.html" } else { "" };
        check(folder.path(), &format!("recorder diff a.json b.json{html}"), input);
    }
}

#[test]
fn random_results_are_compared_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(bench("all_reduce --ranks 2 -b 8 -e 64 -f 8 -n 1 --json=good.json").current_dir(folder.path()), 0);
    let good: Value = serde_json::from_slice(&fs::read(folder.path().join("good.json")).unwrap()).unwrap();
    let mut random = Random(43);
    for input in inputs(60) {
        for file in ["a.json", "b.json"] {
            write(&folder.path().join(file), &good, &mut random);
        }
        check(
            folder.path(),
            ["bench compare a.json b.json", "bench compare good.json b.json --json"][input % 2],
            input,
        );
    }
}

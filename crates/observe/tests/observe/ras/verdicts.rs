//! Verdicts on synthetic reports: `verdicts.txt` has a line `$ REPORT | REPORT...` for each case, followed by the verdicts.
//! `SNAPSHOTS=overwrite` rewrites the file.
//!
//! A report is a list of words. A rank is its number of all-reduces, or `ALL_REDUCE,BROADCAST`, or `?` without counters, and a missing
//! one `dead`, `silent` or `absent`. Then come changes, `POINTER=VALUE` in JSON, or `POINTER-` for a field that is left out; `#` is the
//! communicator, `@` its rank 1; `twice` lists it twice.

use std::fs;

use serde_json::{Value, json};

use libnccl_observe::ras::{Report, verdicts};

fn rank(rank: usize, word: &str) -> Value {
    let (host, status, counts) = match word {
        "dead" => (2, json!({ "unresponsive": true, "considered_dead": true }), None),
        "silent" => (2, json!({ "unresponsive": true, "considered_dead": false }), None),
        "absent" => (2, json!({ "unresponsive": false, "considered_dead": false }), None),
        _ => {
            let status = json!({
                "init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false,
            });
            let (all_reduce, broadcast) = word.split_once(',').unwrap_or((word, "0"));
            let number = |text: &str| if text == "max" { u64::MAX } else { text.parse().unwrap() };
            let counts = match word {
                "?" => json!({}),
                _ => json!({ "AllReduce": number(all_reduce), "Broadcast": number(broadcast) }),
            };
            (1, status, Some(counts))
        }
    };
    let mut rank = json!({
        "rank": rank, "host": format!("10.0.0.{host}"), "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank, "status": status,
    });
    counts.into_iter().for_each(|counts| rank["collective_counts"] = counts);
    rank
}

fn report(words: &str) -> Report {
    let is_change = |word: &&str| word.starts_with(['@', '#', '/']) || *word == "twice";
    let (changes, ranks): (Vec<_>, Vec<_>) = words.split_whitespace().partition(is_change);
    let size = ranks.len();
    let ranks = ranks.into_iter().enumerate().map(|(number, word)| rank(number, word));
    let (ranks, missing): (Vec<_>, Vec<_>) = ranks.partition(|rank| rank.get("collective_counts").is_some());
    let communicator = json!({
        "hash": "0xab", "secondary_hash": "0x1:0x2", "size": size, "ranks_count": ranks.len(),
        "missing_ranks_count": missing.len(), "ranks": ranks, "missing_ranks": missing,
    });
    let initialising = json!({ "hash": "0x0", "secondary_hash": "0x0:0x0", "size": 0 });
    let mut report = json!({
        "nccl_version": "2.30.7", "communicators_count": 2, "communicators": [communicator, initialising],
        "ras": { "collection_time_sec": 0.001, "timeouts_count": 0 },
    });
    for change in changes {
        if change == "twice" {
            let communicators = report["communicators"].as_array_mut().unwrap();
            communicators.push(communicators[0].clone());
            continue;
        }
        let (pointer, value) = change.split_once('=').unwrap_or((change.trim_end_matches('-'), ""));
        let pointer = pointer.replace('@', "#/ranks/1").replace('#', "/communicators/0");
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = report.pointer_mut(parent).unwrap();
        match value {
            "" => drop(parent.as_object_mut().unwrap().remove(key)),
            value => parent[key] = serde_json::from_str(value).unwrap(),
        }
    }
    Report::parse(report.to_string().as_bytes()).unwrap()
}

#[test]
fn verdicts_are_those_of_the_file() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/observe/ras/verdicts.txt");
    let expected = fs::read_to_string(file).unwrap();
    let mut found = String::new();
    for line in expected.lines().filter(|line| line.is_empty() || line.starts_with(['#', '$'])) {
        found += &format!("{line}\n");
        if let Some(case) = line.strip_prefix("$ ") {
            let reports: Vec<_> = case.split(" | ").map(report).collect();
            found.extend(verdicts(&reports).iter().map(|verdict| format!("{verdict}\n")));
        }
    }
    if std::env::var("SNAPSHOTS").is_ok_and(|value| value == "overwrite") {
        fs::write(file, found).unwrap();
        return;
    }
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, expected, "verdicts.txt:{}", number + 1);
    }
    assert_eq!(found, expected);
}

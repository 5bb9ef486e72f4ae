//! `nccl recorder diff` on folders in which other files lie.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{assert_has, fifo, json, list, nccl, read, run};

/// Returns the recording of a rank of three, that has called so many collectives.
fn recording(rank: usize, collectives: u64) -> Value {
    let record = |number: u64| {
        json!({
            "number": number, "collective": number, "operation": "all_reduce", "data_type": "float", "sent": 4,
            "received": 4, "peer": null, "group": null, "queued_ns": number, "state": "queued",
        })
    };
    let records: Vec<Value> = (1..=collectives).map(record).collect();
    json!({
        "format": "libnccl recorder", "version": 1, "time_ns": 9, "process": 100 + rank,
        "communicators": [{ "id": "c", "name": null, "rank": rank, "size": 3, "records": records }],
    })
}

/// Writes the recordings of three ranks that have called so many collectives each.
fn folder(collectives: [u64; 3]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (rank, collectives) in collectives.into_iter().enumerate() {
        let path = folder.path().join(format!("rank{rank}.json"));
        fs::write(path, recording(rank, collectives).to_string()).unwrap();
    }
    folder
}

/// Compares the recordings of a folder of which one file, of this name, is to be left out. Returns the text.
#[track_caller]
fn diff(folder: &Path, name: &str, problem: &str, status: i32) -> String {
    let page = folder.join("page.html");
    let (text, stderr) = run(nccl("recorder diff --html").arg(&page).arg(folder), status);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("warning: left out: "), "{stderr}");
    assert_has(&stderr, &[name, problem]);
    assert_has(&read(&page), &["<p>Left out: ", name]);
    let (printed, _) = run(nccl("recorder diff --json").arg(folder), status);
    let left_out = &json(&printed)["left_out"];
    assert_eq!(list(left_out).len(), 1, "{left_out}");
    assert_has(&left_out.to_string(), &[name]);
    text
}

const AGREE: &str = "communicator c: 3 of 3 ranks recorded\n  all ranks agree, up to collective 2\n";

#[test]
fn foreign_file_is_named_and_the_others_are_compared() {
    for (foreign, problem) in [
        (json!({ "lr": 1 }), "missing field `format`"),
        (json!([1, 2]), "invalid type: integer `1`"),
        (json!(null), "invalid type: null"),
        (json!("libnccl recorder"), "invalid type: string"),
        (
            json!({ "format": "x", "version": 1, "time_ns": 0, "process": 1, "communicators": [] }),
            "it is of format x 1, and this program reads libnccl recorder 1",
        ),
    ] {
        let agreeing = folder([2, 2, 2]);
        fs::write(agreeing.path().join("config.json"), foreign.to_string()).unwrap();
        assert_eq!(diff(agreeing.path(), "config.json", problem, 0), AGREE);
        let diverging = folder([2, 1, 2]);
        fs::write(diverging.path().join("config.json"), foreign.to_string()).unwrap();
        let text = diff(diverging.path(), "config.json", problem, 1);
        assert_has(
            &text,
            &["3 of 3 ranks recorded\n", "rank 1 has not called collective 2, all_reduce of 4 float"],
        );
    }
}

#[test]
fn recording_that_cannot_be_read_is_named_and_no_agreement() {
    let whole = recording(1, 2).to_string();
    let changed = |change: fn(&mut Value)| {
        let mut changed = recording(1, 2);
        change(&mut changed);
        changed.to_string()
    };
    for (text, problem) in [
        (String::new(), "EOF while parsing a value"),
        (whole[..whole.len() / 2].to_owned(), "EOF while parsing"),
        (whole[..whole.len() - 1].to_owned(), "EOF while parsing an object"),
        ("\0".repeat(100), "expected value"),
        (
            changed(|of| of["version"] = json!(0)),
            "it is of format libnccl recorder 0, and this program reads",
        ),
        (
            changed(|of| of["version"] = json!(2)),
            "it is of format libnccl recorder 2, and this program reads",
        ),
        (
            changed(|of| of["communicators"][0]["records"][0]["number"] = json!(7)),
            "operation number 2: expected one above 7",
        ),
        (
            changed(|of| of["communicators"][0]["size"] = json!(4)),
            "has 4 ranks on communicator c, and another one 3",
        ),
        (
            changed(|of| {
                drop(of["communicators"][0]["records"][1].as_object_mut().unwrap().remove("collective"));
            }),
            "missing field `collective`",
        ),
        (
            changed(|of| {
                of["communicators"][0]["count"] = json!(2);
                of["communicators"][0]["records"] = json!([]);
            }),
            "count 2: expected a record of the last operation at least",
        ),
        (
            // Its first communicator is sound, and left out with it.
            changed(|of| {
                let mut second = of["communicators"][0].clone();
                (second["id"], second["rank"]) = (json!("d"), json!(3));
                of["communicators"].as_array_mut().unwrap().push(second);
            }),
            "rank 3 of 3 on communicator d: expected a rank below the size",
        ),
    ] {
        let other = folder([2, 2, 2]);
        fs::write(other.path().join("rank7.json"), &text).unwrap();
        assert_eq!(diff(other.path(), "rank7.json", problem, 1), AGREE);
        let own = folder([2, 2, 2]);
        fs::write(own.path().join("rank1.json"), &text).unwrap();
        // Of two sizes, that of the first file.
        if !problem.contains("another one") {
            let compared = diff(own.path(), "rank1.json", problem, 1);
            assert_has(&compared, &["2 of 3 ranks recorded\n", "there is no recording of rank 1 of 3"]);
        }
        // Whoever names it wants it.
        let (_, stderr) =
            run(nccl("recorder diff").arg(other.path()).arg(other.path().join("rank7.json")), 1);
        assert!(stderr.starts_with("error: "), "{stderr}");
    }
}

#[test]
fn file_that_cannot_be_opened_is_named_and_no_agreement() {
    let folder = folder([2, 2, 2]);
    fifo(&folder.path().join("rank3.json"));
    assert_eq!(diff(folder.path(), "rank3.json", "a FIFO to which nobody writes", 1), AGREE);
}

/// Writes the recording of a rank of a communicator that was written at this time, with operations that began before it.
fn write_at(folder: &TempDir, name: &str, id: &str, rank: usize, time: u64, first: u64) {
    let mut recording = recording(rank, 2);
    recording["time_ns"] = json!(time);
    let communicator = &mut recording["communicators"][0];
    communicator["id"] = json!(id);
    for (record, number) in communicator["records"].as_array_mut().unwrap().iter_mut().zip(first..) {
        (record["number"], record["queued_ns"]) = (json!(number), json!(time - 10 + number));
        record["collective"] = json!(number);
    }
    fs::write(folder.path().join(name), recording.to_string()).unwrap();
}

#[test]
fn recording_of_an_earlier_job_is_named_and_the_others_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    (0..3).for_each(|rank| write_at(&folder, &format!("rank{rank}.json"), "c", rank, 1000, 1));
    write_at(&folder, "rank3.json", "of a larger job", 2, 980, 1);
    assert_eq!(diff(folder.path(), "rank3.json", "of an earlier job, as it was written before", 0), AGREE);
    // Whoever names it wants it.
    let files = (0..4).map(|rank| folder.path().join(format!("rank{rank}.json")));
    let (text, stderr) = run(nccl("recorder diff").args(files), 1);
    assert_eq!(stderr, "");
    assert_has(&text, &["communicator of a larger job: 1 of 3 ranks recorded\n"]);
}

#[test]
fn recording_that_may_be_of_the_same_job_is_compared() {
    // Written while the others had begun; of a communicator of the others; before others that have lost their first operations.
    for (id, time, first) in [("d", 995, 1), ("c", 980, 1), ("d", 980, 5)] {
        let folder = tempfile::tempdir().unwrap();
        (0..2).for_each(|rank| write_at(&folder, &format!("rank{rank}.json"), "c", rank, 1000, first));
        write_at(&folder, "rank2.json", id, 2, time, 1);
        let (text, stderr) = run(nccl("recorder diff").arg(folder.path()), i32::from(id == "d"));
        assert_eq!(stderr, "", "{id} {time} {first}");
        assert_has(
            &text,
            &[if id == "d" { "communicator d: 1 of 3 ranks" } else { "communicator c: 3 of 3 ranks" }],
        );
    }
}

#[test]
fn folder_without_a_recording_is_an_error_that_names_each_file() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.json", "b.json"] {
        fs::write(folder.path().join(name), "{}").unwrap();
    }
    let (text, stderr) = run(nccl("recorder diff").arg(folder.path()), 1);
    assert_eq!(text, "");
    assert_has(
        &stderr,
        &["error: ", "a.json is not a recording of libnccl", "b.json is not a recording of libnccl"],
    );
}

//! `nccl recorder diff` on directories that contain other files.

use std::fs;

use serde_json::{Value, json};

use crate::common::{assert_has, fifo, json, list, nccl};
use crate::recordings::{self, communicator, records};
use crate::snapshot::Session;

/// Returns the recording of one of three ranks, which has called this many collectives.
fn recording(rank: usize, collectives: usize) -> Value {
    let records = records(&"all_reduce ".repeat(collectives));
    recordings::recording(rank, &[communicator("c", rank, 3, &records)])
}

/// Writes the recordings of three ranks that have each called this many collectives.
fn write_ranks(session: &Session, directory: &str, collectives: [usize; 3]) {
    for (rank, collectives) in collectives.into_iter().enumerate() {
        session.write(&format!("{directory}/rank{rank}.json"), recording(rank, collectives).to_string());
    }
}

/// Compares the recordings of a directory. The file of this name must be left out.
#[track_caller]
fn diff(session: &mut Session, directory: &str, name: &str) {
    session.nccl(&format!("recorder diff --html page.html {directory}"));
    assert_has(&session.read("page.html"), &["<p>Left out: ", name]);
    let output = nccl("recorder diff --json").arg(session.path(directory)).output().unwrap();
    let left_out = &json(&String::from_utf8(output.stdout).unwrap())["left_out"];
    assert_eq!(list(left_out).len(), 1, "{left_out}");
    assert_has(&left_out.to_string(), &[name]);
    fs::remove_dir_all(session.path(directory)).unwrap();
}

#[test]
fn foreign_file_is_named_and_the_others_are_compared() {
    let mut session = Session::new();
    for foreign in [
        json!({ "lr": 1 }),
        json!([1, 2]),
        json!(null),
        json!("libnccl recorder"),
        json!({ "format": "x", "version": 1, "time_ns": 0, "process": 1, "communicators": [] }),
    ] {
        for (directory, collectives) in [("agreeing", [2, 2, 2]), ("diverging", [2, 1, 2])] {
            write_ranks(&session, directory, collectives);
            session.write(&format!("{directory}/config.json"), foreign.to_string());
            diff(&mut session, directory, "config.json");
        }
    }
    session.check("recorder_foreign_file");
}

#[test]
fn recording_that_cannot_be_read_is_named_and_no_agreement() {
    let whole = recording(1, 2).to_string();
    let changed = |change: fn(&mut Value)| {
        let mut changed = recording(1, 2);
        change(&mut changed);
        changed.to_string()
    };
    let mut session = Session::new();
    for (case, text) in [
        ("nothing", String::new()),
        ("half", whole[..whole.len() / 2].to_owned()),
        ("without its end", whole[..whole.len() - 1].to_owned()),
        ("zeros", "\0".repeat(100)),
        ("older version", changed(|of| of["version"] = json!(0))),
        ("newer version", changed(|of| of["version"] = json!(2))),
        ("numbers that fall", changed(|of| of["communicators"][0]["records"][0]["number"] = json!(7))),
        (
            "no collective",
            changed(|of| {
                drop(of["communicators"][0]["records"][1].as_object_mut().unwrap().remove("collective"));
            }),
        ),
        (
            "count without records",
            changed(|of| {
                of["communicators"][0]["count"] = json!(2);
                of["communicators"][0]["records"] = json!([]);
            }),
        ),
        (
            // Its first communicator is valid, but is left out with the file.
            "second communicator",
            changed(|of| {
                let mut second = of["communicators"][0].clone();
                (second["id"], second["rank"]) = (json!("d"), json!(3));
                of["communicators"].as_array_mut().unwrap().push(second);
            }),
        ),
        ("other size", changed(|of| of["communicators"][0]["size"] = json!(4))),
    ] {
        session.add(&format!("# {case}"), "");
        write_ranks(&session, "other", [2, 2, 2]);
        session.write("other/rank7.json", &text);
        // A file that the user names is not left out.
        session.nccl("recorder diff other other/rank7.json");
        diff(&mut session, "other", "rank7.json");
        // Of two sizes, the size in the first file counts.
        if case != "other size" {
            write_ranks(&session, "own", [2, 2, 2]);
            session.write("own/rank1.json", &text);
            diff(&mut session, "own", "rank1.json");
        }
    }
    write_ranks(&session, "fifo", [2, 2, 2]);
    fifo(&session.path("fifo/rank3.json"));
    diff(&mut session, "fifo", "rank3.json");
    session.check("recorder_unreadable");
}

/// Writes the recording of a rank of a communicator that was written at this time, with operations that began before it.
fn write_at(session: &Session, name: &str, id: &str, rank: usize, time: u64, first: u64) {
    let mut recording = recording(rank, 2);
    recording["time_ns"] = json!(time);
    let communicator = &mut recording["communicators"][0];
    communicator["id"] = json!(id);
    for (record, number) in communicator["records"].as_array_mut().unwrap().iter_mut().zip(first..) {
        (record["number"], record["queued_ns"]) = (json!(number), json!(time - 10 + number));
        record["collective"] = json!(number);
    }
    session.write(name, recording.to_string());
}

#[test]
fn recording_of_an_earlier_job_is_named_and_the_others_are_compared() {
    let mut session = Session::new();
    (0..3).for_each(|rank| write_at(&session, &format!("job/rank{rank}.json"), "c", rank, 1000, 1));
    write_at(&session, "job/rank3.json", "of a larger job", 2, 980, 1);
    // A file that the user names is not left out.
    session.nccl("recorder diff job/rank0.json job/rank1.json job/rank2.json job/rank3.json");
    diff(&mut session, "job", "rank3.json");
    session.check("recorder_earlier_job");
}

#[test]
fn recording_that_may_be_of_the_same_job_is_compared() {
    let mut session = Session::new();
    for (case, id, time, first) in [
        ("began-meanwhile", "d", 995, 1),
        ("same-communicator", "c", 980, 1),
        ("first-operations-lost", "d", 980, 5),
    ] {
        (0..2)
            .for_each(|rank| write_at(&session, &format!("{case}/rank{rank}.json"), "c", rank, 1000, first));
        write_at(&session, &format!("{case}/rank2.json"), id, 2, time, 1);
        session.nccl(&format!("recorder diff {case}"));
    }
    session.check("recorder_same_job");
}

#[test]
fn directory_without_a_recording_is_an_error_that_names_each_file() {
    let mut session = Session::new();
    session.write("none/a.json", "{}");
    session.write("none/b.json", "{}");
    session.nccl("recorder diff none");
    session.check("recorder_none");
}

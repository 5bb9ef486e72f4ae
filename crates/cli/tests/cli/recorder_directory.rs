//! `nccl recorder diff` on directories that contain other files.

use serde_json::{Value, json};

use crate::recordings::{self, communicator, records};
use crate::results::change;
use crate::snapshot::Session;

/// Returns the recording of one of three ranks, which has called this many collectives.
fn recording(rank: usize, collectives: usize) -> Value {
    let records = records(&"all_reduce ".repeat(collectives));
    recordings::recording(rank, &[communicator("c", rank, 3, &records)])
}

/// In the commands, `FILE.json: CHANGES` writes a recording of rank 1 with changes, `sh diff DIRECTORY` compares a directory and shows
/// which files are left out, and `sh case` adds `case.json` to the recordings of three ranks, or replaces one of them.
#[test]
fn file_that_cannot_be_read_is_named_and_the_others_are_compared() {
    let session = Session::new();
    for (directory, collectives) in [("sound", [2, 2, 2]), ("diverging", [2, 1, 2])] {
        for (rank, collectives) in collectives.into_iter().enumerate() {
            let text = recording(rank, collectives).to_string();
            session.write(&format!("{directory}/rank{rank}.json"), text);
        }
    }
    let diff =
        "nccl recorder diff --html page.html $1 2>&1; echo status $?; grep -o '<p>Left out: [^<]*' page.html
        nccl recorder diff --json $1 2>/dev/null | sed -n '/\"left_out\"/,/\\]/p'";
    session.write("diff", diff);
    let case = "rm -rf other own; cp -r sound other; cp -r sound own; cp case.json other/rank7.json
        cp case.json own/rank1.json; nccl recorder diff other other/rank7.json 2>&1; sh diff other; sh diff own";
    session.write("case", case);
    session.replay("recorder_files", |session, line| match line.split_once(".json: ") {
        Some((name, changes)) => {
            let mut recording = recording(1, 2);
            change(&mut recording, changes);
            session.write(&format!("{name}.json"), recording.to_string());
            session.add(&format!("$ {line}"), "");
        }
        None => session.shell(line),
    });
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
    session.nccl("recorder diff job");
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

//! `nccl recorder diff` on recordings that are long, or that say what cannot be.

use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{assert_has, assert_visible, fifo, in_time, json, list, nccl, read, run};
use crate::snapshot::Session;

/// Recordings, a file for each process.
struct Recordings(TempDir);

impl Recordings {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn page(&self) -> PathBuf {
        self.0.path().join("page.html")
    }

    fn write(&self, process: usize, communicators: &[String]) {
        fs::write(self.0.path().join(format!("rank{process}.json")), recording(process, communicators))
            .unwrap();
    }

    /// Compares them. Returns the findings.
    fn findings(&self, status: i32) -> Vec<Value> {
        let (stdout, _) = run(nccl("recorder diff --json").arg(self.0.path()), status);
        list(&json(&stdout)["findings"]).to_vec()
    }

    /// Compares them, and draws the page. Returns stdout and stderr.
    fn diff(&self, status: i32) -> (String, String) {
        run(nccl("recorder diff --html").arg(self.page()).arg(self.0.path()), status)
    }
}

/// Returns the recording of a process with these communicators, which are JSON.
fn recording(process: usize, communicators: &[String]) -> String {
    let communicators = communicators.join(",");
    format!(
        r#"{{"format":"libnccl recorder","version":1,"time_ns":1,"process":{process},"communicators":[{communicators}]}}"#
    )
}

/// Returns a communicator of a process, with these records.
fn communicator(id: &str, rank: usize, size: usize, records: &[String]) -> String {
    let records = records.join(",");
    format!(r#"{{"id":"{id}","name":null,"rank":{rank},"size":{size},"records":[{records}]}}"#)
}

/// Returns an operation of four elements, as JSON, whose peer is that of a message.
fn call(number: u64, collective: Option<u64>, operation: &str, peer: Option<usize>, state: &str) -> String {
    let (collective, peer) = (json!(collective), json!(peer));
    format!(
        r#"{{"number":{number},"collective":{collective},"operation":"{operation}","data_type":"float","sent":4,"received":4,"peer":{peer},"queued_ns":{number},"state":"{state}"}}"#
    )
}

fn collective(number: u64, state: &str) -> String {
    call(number, Some(number), "all_reduce", None, state)
}

/// Compares recordings of so many ranks and entries, in turn a collective and a message to or from the next rank. The last of
/// either differ on rank 1.
fn check_long_recordings(ranks: usize, entries: u64) {
    let recordings = Recordings::new();
    let last = entries / 2;
    for rank in 0..ranks {
        let calls = |number: u64| {
            let (is_odd, state) = (rank == 1, if number == last { "called" } else { "queued" });
            let operation = if is_odd && number == last { "reduce" } else { "all_reduce" };
            let message = if rank % 2 == 0 { ("send", rank + 1) } else { ("recv", rank - 1) };
            let mut message = call(2 * number, None, message.0, Some(message.1), state);
            if is_odd && number == last {
                message = message.replace("\"received\":4", "\"received\":8");
            }
            [call(2 * number - 1, Some(number), operation, None, "queued"), message]
        };
        let records: Vec<String> = (1..=last).flat_map(calls).collect();
        recordings.write(rank, &[communicator("c", rank, ranks, &records)]);
    }
    let findings = recordings.findings(1);
    let kinds: Vec<&Value> = findings.iter().map(|finding| &finding["kind"]).collect();
    assert_eq!(kinds, ["other_operation", "other_message"], "{findings:#?}");
    let collectives = [&findings[0]["collective"], &findings[0]["last_agreement"]["collective"]];
    assert_eq!(collectives, [&json!(last), &json!(last - 1)]);
    assert_eq!([&findings[0]["ranks"], &findings[1]["ranks"]], [&json!([1]), &json!([0, 1])]);
    let problem = format!("message {last} from rank 0 to rank 1: 4 float are sent, and 8 float expected");
    assert_eq!(findings[1]["problem"], json!(problem));
}

// If each entry were looked for among all, this would take minutes, and the next one hours.
#[test]
fn recordings_of_50_000_entries_are_compared() {
    check_long_recordings(2, 50_000);
}

#[test]
#[ignore = "takes a minute: .ci/long"]
fn recordings_of_a_million_entries_are_compared() {
    check_long_recordings(4, 1_000_000);
}

// Each waits for half of the others.
#[test]
fn circle_of_ten_thousand_ranks_is_named() {
    const RANKS: usize = 10_000;
    let recordings = Recordings::new();
    let (done, first, second) = (collective(1, "queued"), collective(1, "called"), collective(2, "called"));
    let records = |rank: usize| {
        if rank < RANKS / 2 {
            [vec![done.clone(), second.clone()], vec![]]
        } else {
            [vec![done.clone()], vec![first.clone()]]
        }
    };
    let ranks = (0..RANKS).flat_map(|rank| {
        let [one, other] = records(rank);
        [communicator("c0", rank, RANKS, &one), communicator("c1", rank, RANKS, &other)]
    });
    recordings.write(1, &ranks.collect::<Vec<_>>());
    let findings = recordings.findings(1);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0]["kind"], json!("circular_wait"));
    assert_eq!(list(&findings[0]["calls"]).len(), RANKS);
    let problem = findings[0]["problem"].as_str().unwrap();
    assert_has(
        problem,
        &[
            "10000 of 10000 ranks wait for each other in 2 different calls, ranks 0, 1, ",
            " and 9968 more in the rarest",
        ],
    );
}

#[test]
fn chain_of_ten_thousand_ranks_is_no_circle() {
    const RANKS: usize = 10_000;
    let recordings = Recordings::new();
    let ranks = (0..RANKS).map(|rank| {
        let next = (rank + 1 < RANKS).then(|| call(1, None, "recv", Some(rank + 1), "called"));
        communicator("c", rank, RANKS, next.as_slice())
    });
    recordings.write(1, &ranks.collect::<Vec<_>>());
    let findings = recordings.findings(1);
    assert_eq!(findings.len(), RANKS - 1);
    assert!(findings.iter().all(|finding| finding["kind"] == "unmatched_message"));
}

#[test]
fn communicators_by_the_ten_thousand_are_compared() {
    let recordings = Recordings::new();
    let records = [collective(1, "queued")];
    let all = (0..10_000).map(|id| communicator(&id.to_string(), 0, 2, &records));
    recordings.write(1, &all.collect::<Vec<_>>());
    assert_eq!(recordings.findings(1).len(), 10_000);
    let (text, _) = recordings.diff(1);
    assert_eq!(text.matches("there is no recording of rank 1 of 2").count(), 10_000);
}

#[test]
fn ranks_without_recording_are_counted_without_a_list_of_all() {
    let recordings = Recordings::new();
    let size = 2_147_483_647;
    for rank in [1, 40] {
        recordings.write(rank, &[communicator("c", rank, size, &[collective(1, "queued")])]);
    }
    let findings = recordings.findings(1);
    assert_eq!((findings.len(), &findings[0]["kind"]), (1, &json!("missing_rank")));
    let named: Vec<usize> = [0].into_iter().chain(2..=32).collect();
    assert_eq!(findings[0]["ranks"], json!(named));
    assert_eq!(findings[0]["more_ranks"], json!(size - 2 - 32));
    let (text, _) = recordings.diff(1);
    let problem = "there is no recording of ranks 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, \
        23, 24, 25, 26, 27, 28, 29, 30, 31, 32 and 2147483613 more of 2147483647: dead, or not asked for one";
    assert_has(&text, &["communicator c: 2 of 2147483647 ranks recorded\n", problem]);
    let page = read(&recordings.page());
    let rows = [
        ">rank 0: no recording</text>",
        ">rank 1</text>",
        ">ranks 2 to 39: no recording</text>",
        ">rank 40</text>",
        ">ranks 41 to 2147483646: no recording</text>",
    ];
    assert_has(&page, &rows);
    assert!(page.len() < 10_000, "{} bytes", page.len());
}

#[test]
fn number_that_cannot_be_is_an_error_that_names_it() {
    let records =
        |numbers: RangeInclusive<u64>| numbers.map(|number| collective(number, "queued")).collect::<Vec<_>>();
    let numbered = |numbers: &[(u64, u64)]| {
        let calls =
            numbers.iter().map(|(number, own)| call(*number, Some(*own), "all_reduce", None, "queued"));
        communicator("c", 1, 2, &calls.collect::<Vec<_>>())
    };
    let with_count = |count: u64| {
        communicator("c", 1, 2, &records(1..=3)).replace("\"rank\"", &format!("\"count\":{count},\"rank\""))
    };
    let too_large = numbered(&[(1, 1)]).replace("\"number\":1,", "\"number\":18446744073709551616,");
    let mut session = Session::new();
    for communicator in [
        communicator("c", 1, 1_000_000_000_000, &[]),
        communicator("c", 1, 2_147_483_648, &[]),
        communicator("c", 2, 2, &[]),
        communicator("c", 0, 0, &[]),
        with_count(u64::MAX),
        numbered(&[(1, 1), (2, 2), (2, 3)]),
        numbered(&[(1, 1), (3, 2), (2, 3)]),
        numbered(&[(0, 1)]),
        numbered(&[(1, 5), (2, 5)]),
        numbered(&[(1, 5), (2, 4)]),
        numbered(&[(1, 0)]),
        too_large,
    ] {
        session.write("rank7.json", recording(7, &[communicator]));
        session.nccl("recorder diff rank7.json --html page.html");
        assert!(!session.path("page.html").exists());
    }
    session.check("recorder_numbers");
    let recordings = Recordings::new();
    recordings.write(1, &[with_count(3)]);
    recordings.findings(1);
}

#[test]
fn largest_numbers_are_compared_and_drawn() {
    const MAX: u64 = u64::MAX;
    let recordings = Recordings::new();
    for (rank, operation) in ["all_reduce", "reduce"].into_iter().enumerate() {
        // The last one has a peer that is none, as of a call that NCCL refused.
        let records = [
            call(1, Some(1), "broadcast", Some(0), "queued"),
            call(MAX, Some(MAX), operation, Some(usize::MAX), "failed"),
        ];
        let records = records.map(|record| {
            record.replace("\"sent\":4,\"received\":4", &format!("\"sent\":{MAX},\"received\":1"))
        });
        recordings.write(rank, &[communicator("c", rank, 2, &records)]);
    }
    let findings = recordings.findings(1);
    assert_eq!((&findings[0]["kind"], &findings[0]["collective"]), (&json!("other_operation"), &json!(MAX)));
    let (text, _) = recordings.diff(1);
    assert_has(
        &text,
        &["rank 1 called reduce of 18446744073709551615 to 1 float with root 18446744073709551615"],
    );
    assert_has(&read(&recordings.page()), &["<rect class=\"failed\""]);
}

#[test]
fn control_characters_of_a_recording_are_escaped() {
    // They clear the screen, set a colour, and begin a line.
    const EVIL: &str = "x\u{1b}[2J\u{9b}31m\u{7f}\r\n\t\0y";
    let mut session = Session::new();
    for rank in 0..2 {
        let mut record = json(&collective(1, "called"));
        for name in ["operation", "data_type"] {
            record[name] = json!(format!("{name} {EVIL}"));
        }
        record["site"] = json!({ "file": EVIL, "line": 7 });
        record["sent"] = json!(rank);
        let mut message = json(&call(2, None, ["send", "recv"][rank], Some(1 - rank), "called"));
        message["data_type"] = json!(format!("{EVIL}{rank}"));
        let mut communicator = json(&communicator("c", rank, 3, &[]));
        communicator["id"] = json!(format!("id {EVIL}"));
        communicator["name"] = json!(format!("name {EVIL}"));
        communicator["records"] = json!([record, message]);
        session.write(&format!("rank{rank}.json"), recording(rank, &[communicator.to_string()]));
    }
    let diff = "recorder diff rank0.json rank1.json --html page.html";
    let escaped = r"x\u001b[2J\u009b31m\u007f\u000d\u000a\u0009\u0000y";
    let call = format!("rank 1: operation {escaped} of 1 to 4 data_type {escaped} at {escaped}:7, and waits");
    session.nccl(diff);
    assert_has(session.text(), &[&call]);
    let page = session.read("page.html");
    assert_has(&page, &[&call, &format!("<h2>communicator name {escaped} (id {escaped})</h2>")]);
    assert_visible(&page);
    let arguments = "recorder diff rank0.json rank1.json --json";
    let printed = session.run(arguments, &mut nccl(arguments));
    assert_eq!(json(&printed)["communicators"][0]["name"], json!(format!("name {EVIL}")));
    // Other files are errors that quote them.
    let other = json!({ "format": EVIL, "version": 1, "time_ns": 0, "process": 1, "communicators": [] });
    session.write("rank0.json", other.to_string());
    session.nccl(diff);
    let mut unknown = json(&collective(1, "queued"));
    unknown["state"] = json!(EVIL);
    session.write("rank0.json", recording(0, &[communicator("c", 0, 1, &[unknown.to_string()])]));
    session.nccl(diff);
    assert_visible(session.text());
    session.check("recorder_control_characters");
}

#[test]
fn recording_in_a_fifo_without_a_writer_is_an_error() {
    let recordings = Recordings::new();
    let path = recordings.0.path().join("rank0.json");
    fifo(&path);
    // In a folder, and by its name.
    for argument in [recordings.0.path(), &path] {
        let argument = argument.to_owned();
        let (_, stderr) = in_time(move || run(nccl("recorder diff").arg(argument), 1));
        assert_eq!(stderr, format!("error: cannot read {}: a FIFO to which nobody writes\n", path.display()));
    }
}

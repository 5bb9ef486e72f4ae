//! `nccl recorder diff` on recordings of jobs with one mistake each, on long recordings, and on inconsistent ones.

use serde_json::{Value, json};

use crate::common::{assert_has, assert_visible, json, list, nccl, run};
use crate::recordings::{call, communicator, message, recording, records, with};
use crate::snapshot::Session;

/// Writes the recordings of a case and compares them: adds the kinds and ranks of the findings, and the text. In the case, `|` separates
/// the ranks, of which `-` has no recording, and `||` the communicators.
fn diff(session: &mut Session, line: &str) {
    let (case, communicators) = line.split_once(": ").unwrap();
    let communicators: Vec<Vec<&str>> =
        communicators.split("||").map(|ranks| ranks.split('|').map(str::trim).collect()).collect();
    for rank in 0..communicators[0].len() {
        let of_rank =
            communicators.iter().enumerate().filter(|(_, ranks)| ranks[rank] != "-").map(|(index, ranks)| {
                communicator(&format!("c{index}"), rank, ranks.len(), &records(ranks[rank]))
            });
        let of_rank: Vec<_> = of_rank.collect();
        if !of_rank.is_empty() {
            session.write(&format!("{case}/rank{rank}.json"), recording(rank, &of_rank).to_string());
        }
    }
    let output = nccl("recorder diff --json").arg(session.path(case)).output().unwrap();
    let report = json(&String::from_utf8_lossy(&output.stdout));
    let findings = list(&report["findings"]);
    assert_eq!(output.status.code(), Some(i32::from(!findings.is_empty())), "{case}: {findings:?}");
    let text = session.run(line, nccl("recorder diff").arg(case));
    for finding in findings {
        session.add(&format!("# {}, ranks {}", finding["kind"], finding["ranks"]), "");
        assert_has(&text, &[finding["problem"].as_str().unwrap()]);
    }
}

#[test]
fn findings_name_the_ranks_and_calls() {
    Session::new().replay("recorder_findings", diff);
}

/// Recordings in files, one per process.
fn findings(recordings: &[Value]) -> (Session, Vec<Value>) {
    let session = Session::new();
    for (process, recording) in recordings.iter().enumerate() {
        session.write(&format!("job/{process}.json"), recording.to_string());
    }
    let mut command = nccl("recorder diff job --json");
    let (stdout, _) = run(command.current_dir(session.path("")), 1);
    let findings = list(&json(&stdout)["findings"]).to_vec();
    (session, findings)
}

/// Compares the recordings of [`findings`] again, and draws the page. Returns what is printed, and the page.
fn drawn(session: &Session) -> (String, String) {
    let mut command = nccl("recorder diff job --html page.html");
    let (text, _) = run(command.current_dir(session.path("")), 1);
    (text, session.read("page.html"))
}

/// Compares recordings of this many ranks and entries, alternating between a collective and a send or receive. The last collective
/// and the last send or receive differ on rank 1.
fn check_long_recordings(ranks: usize, entries: u64) {
    let last = entries / 2;
    let of_rank = |rank: usize| {
        let calls = |number: u64| {
            let (is_odd, state) =
                (rank == 1 && number == last, if number == last { "called" } else { "queued" });
            let operation = if is_odd { "reduce" } else { "all_reduce" };
            let message = match rank % 2 {
                0 => message(2 * number, "send", rank + 1, state),
                _ if is_odd => with(message(2 * number, "recv", rank - 1, state), json!({ "received": 8 })),
                _ => message(2 * number, "recv", rank - 1, state),
            };
            [call(2 * number - 1, Some(number), operation, "queued"), message]
        };
        let records: Vec<Value> = (1..=last).flat_map(calls).collect();
        recording(rank, &[communicator("c", rank, ranks, &records)])
    };
    let (_, findings) = findings(&(0..ranks).map(of_rank).collect::<Vec<_>>());
    let kinds: Vec<&Value> = findings.iter().map(|finding| &finding["kind"]).collect();
    assert_eq!(kinds, ["other_operation", "other_message"], "{findings:#?}");
    let collectives = [&findings[0]["collective"], &findings[0]["last_agreement"]["collective"]];
    assert_eq!(collectives, [&json!(last), &json!(last - 1)]);
    let problem = format!("send {last} from rank 0 to rank 1: 4 float are sent, and 8 float expected");
    assert_eq!(findings[1]["problem"], json!(problem));
}

// With a linear search for each entry, this would take minutes, and the next test hours.
#[test]
fn recordings_of_50_000_entries_are_compared() {
    check_long_recordings(2, 50_000);
}

#[test]
#[ignore = "takes a minute: .ci/run long"]
fn recordings_of_a_million_entries_are_compared() {
    check_long_recordings(4, 1_000_000);
}

/// A cycle of ranks that each wait for half of the others, a chain without a cycle, and several communicators.
#[test]
fn ten_thousand_ranks_or_communicators_are_compared() {
    const MANY: usize = 10_000;
    let [done, first, both] = ["all_reduce", "all_reduce?", "all_reduce all_reduce?"].map(records);
    let of_circle = |rank: usize| {
        let [c0, c1] = if rank < MANY / 2 { [&both, &vec![]] } else { [&done, &first] };
        [communicator("c0", rank, MANY, c0), communicator("c1", rank, MANY, c1)]
    };
    let (_, circle) = findings(&[recording(1, &(0..MANY).flat_map(of_circle).collect::<Vec<_>>())]);
    assert_eq!((circle.len(), &circle[0]["kind"]), (1, &json!("circular_wait")));
    assert_eq!(list(&circle[0]["calls"]).len(), MANY);
    let start = "10000 of 10000 ranks wait for each other in 2 different calls, ranks 0, 1, ";
    assert_has(circle[0]["problem"].as_str().unwrap(), &[start, " and 9968 more in the rarest"]);

    let of_chain = |rank: usize| {
        let next = (rank + 1 < MANY).then(|| message(1, "recv", rank + 1, "called"));
        communicator("c", rank, MANY, next.as_slice())
    };
    let (_, chain) = findings(&[recording(1, &(0..MANY).map(of_chain).collect::<Vec<_>>())]);
    assert_eq!(chain.len(), MANY - 1);
    assert!(chain.iter().all(|finding| finding["kind"] == "unmatched_message"));

    let all = (0..MANY).map(|id| communicator(&id.to_string(), 0, 2, &done));
    let (session, missing) = findings(&[recording(1, &all.collect::<Vec<_>>())]);
    assert_eq!(missing.len(), MANY);
    assert_eq!(drawn(&session).0.matches("there is no recording of rank 1 of 2").count(), MANY);
}

#[test]
fn ranks_without_recording_are_counted_without_a_list_of_all() {
    let size = 2_147_483_647;
    let of_rank = |rank: usize| recording(rank, &[communicator("c", rank, size, &records("all_reduce"))]);
    let (session, findings) = findings(&[1, 40].map(of_rank));
    let named: Vec<usize> = [0].into_iter().chain(2..=32).collect();
    assert_eq!((findings.len(), &findings[0]["ranks"]), (1, &json!(named)));
    assert_eq!(findings[0]["more_ranks"], json!(size - 2 - 32));
    let (text, page) = drawn(&session);
    assert_has(
        &text,
        &["c: 2 of 2147483647 ranks recorded\n", " 31, 32 and 2147483613 more of 2147483647: dead"],
    );
    let gaps = [
        ">rank 0: no recording</text>",
        ">ranks 2 to 39: no",
        ">ranks 41 to 2147483646: no recording</text>",
    ];
    assert_has(&page, &[&gaps[..], &[">rank 1</text>", ">rank 40</text>"]].concat());
    assert!(page.len() < 10_000, "{} bytes", page.len());
}

#[test]
fn largest_numbers_are_compared_and_drawn() {
    const MAX: u64 = u64::MAX;
    let of_rank = |rank: usize| {
        // The last call has an invalid peer, like a call that NCCL refused.
        let last =
            json!({ "number": MAX, "collective": MAX, "peer": usize::MAX, "sent": MAX, "received": 1 });
        let last = with(call(2, Some(2), ["all_reduce", "reduce"][rank], "failed"), last);
        recording(rank, &[communicator("c", rank, 2, &[&records("broadcast")[..], &[last]].concat())])
    };
    let (session, findings) = findings(&[0, 1].map(of_rank));
    assert_eq!((&findings[0]["kind"], &findings[0]["collective"]), (&json!("other_operation"), &json!(MAX)));
    let (text, page) = drawn(&session);
    let call = "rank 1 called reduce of 18446744073709551615 to 1 float with root 18446744073709551615";
    assert_has(&text, &[call]);
    assert_has(&page, &["<rect class=\"failed\"", "<rect class=\"done\"", ".failed { fill: var(--failed) }"]);
}

#[test]
fn control_characters_of_a_recording_are_escaped() {
    // They clear the screen, set a color, and begin a line.
    const EVIL: &str = "x\u{1b}[2J\u{9b}31m\u{7f}\r\n\t\0y";
    let evil = |name: &str| format!("{name} {EVIL}");
    let mut session = Session::new();
    for rank in 0..2 {
        let site = json!({ "file": EVIL, "line": 7 });
        let changes = json!({ "operation": evil("operation"), "data_type": evil("data_type"), "site": site, "sent": rank });
        let sent = message(2, ["send", "recv"][rank], 1 - rank, "called");
        let sent = with(sent, json!({ "data_type": format!("{EVIL}{rank}") }));
        let called = with(call(1, Some(1), "all_reduce", "called"), changes);
        let own = communicator("c", rank, 3, &[called, sent]);
        let own = with(own, json!({ "id": evil("id"), "name": evil("name") }));
        session.write(&format!("rank{rank}.json"), recording(rank, &[own]).to_string());
    }
    let diff = "recorder diff rank0.json rank1.json --html page.html";
    let escaped = r"x\u001b[2J\u009b31m\u007f\u000d\u000a\u0009\u0000y";
    session.nccl(diff);
    let page = session.read("page.html");
    assert_has(&page, &[&format!("<h2>communicator name {escaped} (id {escaped})</h2>")]);
    assert_visible(&page);
    let arguments = "recorder diff rank0.json rank1.json --json";
    let printed = session.run(&format!("nccl {arguments}"), &mut nccl(arguments));
    assert_eq!(json(&printed)["communicators"][0]["name"], json!(evil("name")));
    // Other files are errors that quote them.
    let unknown = call(1, Some(1), "all_reduce", EVIL);
    for other in [
        with(recording(0, &[]), json!({ "format": EVIL })),
        recording(0, &[communicator("c", 0, 1, &[unknown])]),
    ] {
        session.write("rank0.json", other.to_string());
        session.nccl(diff);
    }
    session.check("recorder_control_characters");
}

//! `nccl recorder diff` on recordings of jobs with one mistake each.

use std::fs;

use serde_json::{Value, json};

use crate::common::{assert_has, json, list, nccl, run};
use crate::snapshot::Session;

/// The operations of a rank, on one communicator or more.
type Operations = Vec<Value>;

/// Ranks of a communicator, some of which have no recording.
type Ranks = Vec<Option<Operations>>;

/// Returns an operation, whose number is that of a collective too, if it is one.
fn call(number: u64, collective: Option<u64>, operation: &str, state: &str) -> Value {
    json!({
        "number": number, "collective": collective, "message": null, "operation": operation,
        "data_type": "float", "sent": 4, "received": 4, "peer": null, "source": null, "group": null,
        "site": { "file": "train.rs", "line": 10 + number, "column": 5 },
        "stream": 0, "queued_ns": 1_000_000 + 1000 * number, "completed_ns": null, "state": state,
    })
}

fn done(number: u64, operation: &str) -> Value {
    call(number, Some(number), operation, "completed")
}

fn waiting(number: u64, operation: &str) -> Value {
    call(number, Some(number), operation, "called")
}

fn with(mut call: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        call[name] = value.clone();
    }
    call
}

fn send(number: u64, peer: usize, state: &str) -> Value {
    with(call(number, None, "send", state), json!({ "peer": peer, "received": 0 }))
}

fn recv(number: u64, peer: usize, state: &str) -> Value {
    with(call(number, None, "recv", state), json!({ "peer": peer, "sent": 0 }))
}

/// Returns the recording of a rank with these communicators.
fn recording(rank: usize, communicators: &[Value]) -> String {
    let recording = json!({
        "format": "libnccl recorder", "version": 1, "reason": "timeout", "time_ns": 2_000_000,
        "process": 100 + rank, "nccl": "2.32.3", "communicators": communicators,
    });
    recording.to_string()
}

/// Writes a recording for each rank that has operations, and compares them: adds the kinds and ranks of the findings, and the text.
fn diff(session: &mut Session, case: &str, communicators: &[(&str, Ranks)]) {
    for rank in 0..communicators[0].1.len() {
        let of_rank = |(id, ranks): &(&str, Ranks)| {
            let records = ranks[rank].clone()?;
            Some(json!({ "id": id, "name": null, "rank": rank, "size": ranks.len(), "records": records }))
        };
        let of_rank: Vec<_> = communicators.iter().filter_map(of_rank).collect();
        if !of_rank.is_empty() {
            session.write(&format!("{case}/rank{rank}.json"), recording(rank, &of_rank));
        }
    }
    let output = nccl("recorder diff --json").arg(session.path(case)).output().unwrap();
    let report = json(&String::from_utf8_lossy(&output.stdout));
    let findings = list(&report["findings"]);
    assert_eq!(output.status.code(), Some(i32::from(!findings.is_empty())), "{case}: {findings:?}");
    let text = session.run(&format!("recorder diff '{case}'"), nccl("recorder diff").arg(case));
    for finding in findings {
        session.add(&format!("# {}, ranks {}", finding["kind"], finding["ranks"]), "");
        assert_has(&text, &[finding["problem"].as_str().unwrap()]);
    }
}

#[test]
fn findings_name_the_ranks_and_calls() {
    let mut session = Session::new();
    let mut one = |case: &str, ranks: Ranks| diff(&mut session, case, &[("c0", ranks)]);
    let rank = |operations: &[Value]| Some(operations.to_vec());

    let agreeing = || rank(&[done(1, "all_reduce"), done(2, "broadcast")]);
    let in_place = rank(&[done(1, "all_reduce_in_place"), done(2, "broadcast")]);
    one("agreement", vec![agreeing(), in_place, agreeing()]);
    let vector = |sent: u64| rank(&[with(done(1, "all_gather_v"), json!({ "sent": sent, "received": 6 }))]);
    one("counts of a vector collective that differ", vec![vector(1), vector(2), vector(3)]);
    let of_ring = |first: u64| Some((first..=9).map(|number| done(number, "all_reduce")).collect());
    one("operations that a ring has lost, and which are not called equal", vec![of_ring(1), of_ring(7)]);

    let two = || rank(&[done(1, "all_reduce"), waiting(2, "all_reduce")]);
    one("rank without recording", vec![two(), None, two()]);
    let two = || rank(&[done(1, "all_reduce"), waiting(2, "broadcast")]);
    one("missing call", vec![two(), two(), rank(&[done(1, "all_reduce")])]);
    let three = || rank(&[done(1, "all_reduce"), done(2, "broadcast"), done(3, "reduce")]);
    let short = rank(&[done(1, "broadcast"), done(2, "reduce")]);
    one("call that was left out", vec![three(), three(), short]);
    let extra = rank(&[done(1, "all_reduce"), waiting(2, "all_reduce")]);
    let short = || rank(&[done(1, "all_reduce")]);
    one("extra call", vec![short(), extra, short()]);
    // On streams, where the calls go on.
    let extra = rank(&[done(1, "reduce"), done(2, "all_reduce"), done(3, "broadcast")]);
    one("extra call in the middle", vec![agreeing(), extra, agreeing()]);
    let swapped = rank(&[done(1, "broadcast"), done(2, "all_reduce")]);
    one("other order", vec![agreeing(), swapped, agreeing()]);
    for (case, change) in [
        ("other operation", json!({ "operation": "reduce_scatter" })),
        ("other type", json!({ "data_type": "double" })),
        ("other size", json!({ "sent": 5, "received": 5 })),
        ("other root", json!({ "peer": 1 })),
    ] {
        let call = || with(waiting(1, "broadcast"), json!({ "peer": 0 }));
        // All of them wait in one call, or the last in another.
        one(case, vec![rank(&[call()]), rank(&[call()]), rank(&[call()]), rank(&[with(call(), change)])]);
    }

    let grouped = [
        with(waiting(1, "all_reduce"), json!({ "group": 1 })),
        with(recv(2, 1, "called"), json!({ "group": 1 })),
    ];
    // It waits for a send that rank 0's group starts after the collective.
    one("group against none", vec![rank(&grouped), rank(&[recv(1, 0, "called")])]);
    let sends = [1, 0].map(|peer| rank(&[send(1, peer, "called")]));
    one("two ranks that send first", sends.to_vec());
    let sender = rank(&[send(1, 1, "completed"), send(2, 1, "called")]);
    one("message without a receiver", vec![sender, rank(&[recv(1, 0, "completed")])]);
    let (sent, receiver) = ([send(1, 1, "completed")], [recv(1, 0, "completed"), recv(2, 0, "called")]);
    one("message without a sender", vec![rank(&sent), rank(&receiver)]);
    let receiver = [with(recv(1, 0, "called"), json!({ "received": 8 }))];
    one("message of another size", vec![rank(&sent), rank(&receiver)]);
    let state = |state: &str| rank(&[call(1, Some(1), "all_reduce", state)]);
    one("call of all that does not return", vec![state("completed"), state("called")]);
    one(
        "message of both ends that does not return",
        vec![rank(&sent), rank(&[recv(1, 0, "called")]), rank(&[])],
    );

    let first = || rank(&[waiting(1, "all_reduce")]);
    let c0 = vec![first(), first(), rank(&[])];
    let c1 = vec![rank(&[]), rank(&[]), first()];
    diff(&mut session, "order of two communicators", &[("c0", c0), ("c1", c1)]);
    session.write("no communicator/rank0.json", recording(0, &[]));
    session.run("recorder diff 'no communicator'", nccl("recorder diff").arg("no communicator"));
    session.check("recorder_findings");
}

#[test]
fn page_tells_a_failed_call_from_one_that_has_not_returned() {
    let session = Session::new();
    let records = [call(1, Some(1), "all_reduce", "failed"), call(2, Some(2), "broadcast", "called")];
    let rank = json!({ "id": "c", "name": null, "rank": 0, "size": 1, "records": records });
    session.write("rank0.json", recording(0, &[rank]));
    let mut command = nccl("recorder diff rank0.json --html page.html");
    run(command.current_dir(session.path("")), 1);
    let html = session.read("page.html");
    assert_has(
        &html,
        &["<rect class=\"failed\"", "<rect class=\"called\"", ".failed { fill: var(--failed) }"],
    );
}

#[test]
fn file_that_is_no_recording_is_an_error() {
    let mut session = Session::new();
    let other = json!({ "format": "x", "version": 2, "time_ns": 0, "process": 1, "communicators": [] });
    let rank = json!({ "id": "c", "name": null, "rank": 3, "size": 2, "records": [] });
    for (name, text) in [("a", "{}".into()), ("b", other.to_string()), ("c", recording(0, &[rank]))] {
        session.write(&format!("{name}.json"), text);
        session.nccl(&format!("recorder diff {name}.json"));
    }
    session.check("recorder_no_recording");
}

#[test]
fn ranks_with_different_libraries_are_named() {
    // A recording has a hash if the file has no build id.
    for (field, text) in [("hash", "build id unknown, hash "), ("build_id", "build id ")] {
        let folder = tempfile::tempdir().unwrap();
        for (rank, contents) in ["aa", "bb", "aa"].into_iter().enumerate() {
            let records = [done(1, "all_reduce")];
            let own = json!({ "id": "c", "name": null, "rank": rank, "size": 3, "records": records });
            // The path does not matter.
            let path = format!("/{rank}/libnccl.so.2");
            let mut library = json!({ "path": path, "size": 7, "build_id": null, "hash": null });
            library[field] = contents.into();
            let recording = json!({
                "format": "libnccl recorder", "version": 1, "time_ns": 2_000_000, "process": rank, "library": library,
                "communicators": [own],
            });
            fs::write(folder.path().join(format!("rank{rank}.json")), recording.to_string()).unwrap();
        }
        let (_, warning) = run(nccl("recorder diff").arg(folder.path()), 0);
        assert_eq!(
            warning,
            format!(
                "warning: communicator c: the ranks use different NCCL libraries: ranks 0 and 2: /0/libnccl.so.2 of 7 \
                 bytes, {text}aa; rank 1: /1/libnccl.so.2 of 7 bytes, {text}bb\n"
            )
        );
    }
}

//! `nccl recorder diff` on recordings of jobs with one mistake each.

use std::fs;

use serde_json::{Value, json};

use crate::common::{assert_has, json, list, nccl, read, run};

/// The operations of a rank, on one communicator or more.
type Operations = Vec<Value>;

/// Returns an operation. Those of one number in all are waited for.
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

/// Writes a recording for each rank that has operations, and compares them. Returns the findings and the text.
fn diff(communicators: &[(&str, Vec<Option<Operations>>)]) -> (Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..communicators[0].1.len() {
        let of_rank = |(id, ranks): &(&str, Vec<Option<Operations>>)| {
            let records = ranks[rank].clone()?;
            Some(json!({ "id": id, "name": null, "rank": rank, "size": ranks.len(), "records": records }))
        };
        let of_rank: Vec<_> = communicators.iter().filter_map(of_rank).collect();
        if of_rank.is_empty() {
            continue;
        }
        let recording = json!({
            "format": "libnccl recorder", "version": 1, "reason": "timeout", "time_ns": 2_000_000,
            "process": 100 + rank, "nccl": "2.32.3", "communicators": of_rank,
        });
        fs::write(folder.path().join(format!("rank{rank}.json")), recording.to_string()).unwrap();
    }
    let output = nccl("recorder diff --json").arg(folder.path()).output().unwrap();
    let findings = list(&json(&String::from_utf8_lossy(&output.stdout))["findings"]).to_vec();
    let status = i32::from(!findings.is_empty());
    assert_eq!(output.status.code(), Some(status), "{findings:?}");
    (findings, run(nccl("recorder diff").arg(folder.path()), status).0)
}

/// Compares the ranks of one communicator, which have one finding.
fn finding(ranks: Vec<Option<Operations>>) -> (String, Value, String) {
    let (findings, text) = diff(&[("c0", ranks)]);
    assert_eq!(findings.len(), 1, "{findings:?}");
    let finding = &findings[0];
    assert_has(&text, &[finding["problem"].as_str().unwrap()]);
    (finding["kind"].as_str().unwrap().into(), finding["ranks"].clone(), text)
}

#[test]
fn ranks_that_agree_have_no_finding() {
    let rank = || Some(vec![done(1, "all_reduce"), done(2, "broadcast")]);
    let in_place = Some(vec![done(1, "all_reduce_in_place"), done(2, "broadcast")]);
    let (findings, text) = diff(&[("c0", vec![rank(), in_place, rank()])]);
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(text, "communicator c0: 3 of 3 ranks recorded\n  all ranks agree, up to collective 2\n");
}

#[test]
fn rank_without_recording_is_named() {
    let rank = || Some(vec![done(1, "all_reduce"), waiting(2, "all_reduce")]);
    let (findings, _) = diff(&[("c0", vec![rank(), None, rank()])]);
    assert_eq!((&findings[0]["kind"], &findings[0]["ranks"]), (&json!("missing_rank"), &json!([1])));
    assert_eq!(list(&findings[0]["calls"]).len(), 2);
}

#[test]
fn missing_call_is_named_with_the_last_agreement() {
    let rank = || Some(vec![done(1, "all_reduce"), waiting(2, "broadcast")]);
    let (kind, ranks, text) = finding(vec![rank(), rank(), Some(vec![done(1, "all_reduce")])]);
    assert_eq!((kind.as_str(), ranks), ("missing_call", json!([2])));
    let parts = [
        "rank 2 has not called collective 2, broadcast of 4 float",
        "    rank 1: broadcast of 4 float at train.rs:12, and waits\n",
        "last agreement: collective 1, all_reduce of 4 float",
    ];
    assert_has(&text, &parts);
}

#[test]
fn extra_call_is_named() {
    let rank = || Some(vec![done(1, "all_reduce")]);
    let extra = Some(vec![done(1, "all_reduce"), waiting(2, "all_reduce")]);
    let (kind, ranks, _) = finding(vec![rank(), extra, rank()]);
    assert_eq!((kind.as_str(), ranks), ("extra_call", json!([1])));
    // In the middle, on streams, where the calls go on.
    let rank = || Some(vec![done(1, "all_reduce"), done(2, "broadcast")]);
    let extra = Some(vec![done(1, "reduce"), done(2, "all_reduce"), done(3, "broadcast")]);
    let (kind, ranks, _) = finding(vec![rank(), extra, rank()]);
    assert_eq!((kind.as_str(), ranks), ("extra_call", json!([1])));
}

#[test]
fn call_that_was_left_out_is_named() {
    let rank = || Some(vec![done(1, "all_reduce"), done(2, "broadcast"), done(3, "reduce")]);
    let short = Some(vec![done(1, "broadcast"), done(2, "reduce")]);
    let (kind, ranks, _) = finding(vec![rank(), rank(), short]);
    assert_eq!((kind.as_str(), ranks), ("missing_call", json!([2])));
}

#[test]
fn other_order_is_named() {
    let rank = || Some(vec![done(1, "all_reduce"), done(2, "broadcast")]);
    let swapped = Some(vec![done(1, "broadcast"), done(2, "all_reduce")]);
    let (kind, ranks, text) = finding(vec![rank(), swapped, rank()]);
    assert_eq!((kind.as_str(), ranks), ("other_order", json!([1])));
    assert_has(&text, &["rank 1 called broadcast of 4 float before all_reduce of 4 float"]);
}

#[test]
fn other_arguments_are_named() {
    let cases = [
        ("other_operation", json!({ "operation": "reduce_scatter" })),
        ("other_type", json!({ "data_type": "double" })),
        ("other_size", json!({ "sent": 5, "received": 5 })),
        ("other_root", json!({ "peer": 1 })),
    ];
    for (expected, change) in cases {
        let rank = || Some(vec![with(waiting(1, "broadcast"), json!({ "peer": 0 }))]);
        let other = Some(vec![with(with(waiting(1, "broadcast"), json!({ "peer": 0 })), change)]);
        let (kind, ranks, text) = finding(vec![rank(), rank(), rank(), other]);
        // All of them wait in one call, or the last in another.
        assert_eq!(ranks, json!([3]), "{text}");
        assert_eq!(kind, expected, "{text}");
    }
}

#[test]
fn counts_of_a_vector_collective_may_differ() {
    let rank = |sent: u64| Some(vec![with(done(1, "all_gather_v"), json!({ "sent": sent, "received": 6 }))]);
    let (findings, _) = diff(&[("c0", vec![rank(1), rank(2), rank(3)])]);
    assert!(findings.is_empty(), "{findings:?}");
}

#[test]
fn order_of_two_communicators_is_a_circular_wait() {
    let first = || vec![waiting(1, "all_reduce")];
    let c0 = vec![Some(first()), Some(first()), Some(vec![])];
    let c1 = vec![Some(vec![]), Some(vec![]), Some(first())];
    let (findings, text) = diff(&[("c0", c0), ("c1", c1)]);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((&findings[0]["kind"], &findings[0]["ranks"]), (&json!("circular_wait"), &json!([2])));
    let parts = [
        "all ranks have to use their communicators in the same order",
        "rank 2: all_reduce of 4 float on communicator c1 at train.rs:11, and waits",
    ];
    assert_has(&text, &parts);
}

#[test]
fn group_against_none_is_a_circular_wait_of_the_rank_without() {
    let grouped = Some(vec![
        with(waiting(1, "all_reduce"), json!({ "group": 1 })),
        with(recv(2, 1, "called"), json!({ "group": 1 })),
    ]);
    // It waits for a send that rank 0's group starts after the collective.
    let alone = Some(vec![recv(1, 0, "called")]);
    let (kind, ranks, _) = finding(vec![grouped, alone]);
    assert_eq!((kind.as_str(), ranks), ("circular_wait", json!([1])));
}

#[test]
fn two_ranks_that_send_first_are_a_circular_wait() {
    let (kind, ranks, _) = finding(vec![Some(vec![send(1, 1, "called")]), Some(vec![send(1, 0, "called")])]);
    assert_eq!((kind.as_str(), ranks), ("circular_wait", json!([0, 1])));
}

#[test]
fn message_without_other_end_is_named() {
    let sender = || Some(vec![send(1, 1, "completed"), send(2, 1, "called")]);
    let (kind, ranks, text) = finding(vec![sender(), Some(vec![recv(1, 0, "completed")])]);
    assert_eq!((kind.as_str(), ranks), ("unmatched_message", json!([1])));
    assert_has(&text, &["rank 1 has not received message 2 of rank 0"]);
    let receiver = Some(vec![recv(1, 0, "completed"), recv(2, 0, "called")]);
    let (kind, ranks, _) = finding(vec![Some(vec![send(1, 1, "completed")]), receiver]);
    assert_eq!((kind.as_str(), ranks), ("unmatched_message", json!([0])));
}

#[test]
fn message_of_another_size_is_named() {
    let receiver = Some(vec![with(recv(1, 0, "called"), json!({ "received": 8 }))]);
    let (kind, ranks, text) = finding(vec![Some(vec![send(1, 1, "completed")]), receiver]);
    assert_eq!((kind.as_str(), ranks), ("other_message", json!([0, 1])));
    assert_has(&text, &["4 float are sent, and 8 float expected"]);
}

#[test]
fn call_that_all_made_and_that_does_not_return_is_named() {
    let rank = |state: &str| Some(vec![call(1, Some(1), "all_reduce", state)]);
    let (kind, ranks, text) = finding(vec![rank("completed"), rank("called")]);
    assert_eq!((kind.as_str(), ranks), ("not_completed", json!([1])));
    assert_has(&text, &["although all ranks called it"]);
}

#[test]
fn message_that_both_ends_made_and_that_does_not_return_is_named() {
    let (kind, ranks, text) =
        finding(vec![Some(vec![send(1, 1, "completed")]), Some(vec![recv(1, 0, "called")]), Some(vec![])]);
    assert_eq!((kind.as_str(), ranks), ("not_completed", json!([1])));
    assert_has(&text, &["has not returned on rank 1, although each send has its receive\n"]);
}

#[test]
fn recordings_without_a_communicator_are_said_to_have_none() {
    let folder = tempfile::tempdir().unwrap();
    let recording = json!({
        "format": "libnccl recorder", "version": 1, "reason": "signal", "time_ns": 1, "process": 1,
        "nccl": "2.32.3", "communicators": [],
    });
    fs::write(folder.path().join("rank0.json"), recording.to_string()).unwrap();
    let (text, _) = run(nccl("recorder diff").arg(folder.path()), 1);
    assert_eq!(text, "the recordings have no communicator\n");
}

#[test]
fn operations_that_rings_have_lost_are_not_missed() {
    let long = Some((1..=9).map(|number| done(number, "all_reduce")).collect());
    let short = Some((7..=9).map(|number| done(number, "all_reduce")).collect());
    let (findings, text) = diff(&[("c0", vec![long, short])]);
    assert!(findings.is_empty(), "{findings:?}");
    // Nor called equal.
    assert_has(&text, &["  all ranks agree, from collective 7 to 9\n"]);
}

#[test]
fn page_tells_a_failed_call_from_one_that_has_not_returned() {
    let folder = tempfile::tempdir().unwrap();
    let (recording, page) = (folder.path().join("rank0.json"), folder.path().join("page.html"));
    let records = [call(1, Some(1), "all_reduce", "failed"), call(2, Some(2), "broadcast", "called")];
    let rank = json!({ "id": "c", "name": null, "rank": 0, "size": 1, "records": records });
    let text = json!({ "format": "libnccl recorder", "version": 1, "time_ns": 0, "process": 1, "communicators": [rank] });
    fs::write(&recording, text.to_string()).unwrap();
    nccl("recorder diff").arg(&recording).arg("--html").arg(&page).output().unwrap();
    let html = read(&page);
    assert_has(
        &html,
        &["<rect class=\"failed\"", "<rect class=\"called\"", ".failed { fill: var(--failed) }"],
    );
}

#[test]
fn file_that_is_no_recording_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, text: &str, problem: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        assert_has(&run(nccl("recorder diff").arg(file), 1).1, &[problem]);
    };
    check("a.json", "{}", "a.json is not a recording of libnccl");
    let other = json!({ "format": "x", "version": 2, "time_ns": 0, "process": 1, "communicators": [] });
    check("b.json", &other.to_string(), "it is of format x 2");
    let rank = json!({ "id": "c", "name": null, "rank": 3, "size": 2, "records": [] });
    let wrong = json!({ "format": "libnccl recorder", "version": 1, "time_ns": 0, "process": 1, "communicators": [rank] });
    check("c.json", &wrong.to_string(), "rank 3 of 2 on communicator c");
}

#[test]
fn ranks_with_different_libraries_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (rank, hash) in ["aa", "bb", "aa"].into_iter().enumerate() {
        let records = [done(1, "all_reduce")];
        let own = json!({ "id": "c", "name": null, "rank": rank, "size": 3, "records": records });
        let library =
            json!({ "path": format!("/{hash}/libnccl.so.2"), "size": 7, "build_id": null, "hash": hash });
        let recording = json!({
            "format": "libnccl recorder", "version": 1, "time_ns": 2_000_000, "process": rank, "library": library,
            "communicators": [own],
        });
        fs::write(folder.path().join(format!("rank{rank}.json")), recording.to_string()).unwrap();
    }
    let (_, warning) = run(nccl("recorder diff").arg(folder.path()), 0);
    assert_eq!(
        warning,
        "warning: communicator c: the ranks use different NCCL libraries: ranks 0 and 2: /aa/libnccl.so.2 of 7 bytes, \
         build id unknown, hash aa; rank 1: /bb/libnccl.so.2 of 7 bytes, build id unknown, hash bb\n"
    );
}

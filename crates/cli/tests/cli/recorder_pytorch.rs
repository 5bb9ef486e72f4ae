//! `nccl recorder diff` on dumps of PyTorch's flight recorder.

use serde_json::{Value, json};

use crate::common::{assert_has, nccl, run};
use crate::recordings::with;
use crate::snapshot::Session;

/// A process group, and its number on the ranks.
struct Group {
    number: u64,
    name: &'static str,
    ranks: &'static [usize],
}

const ALL: Group = Group { number: 0, name: "0", ranks: &[0, 1, 2, 3] };
const LOW: Group = Group { number: 1, name: "1", ranks: &[0, 1] };
const HIGH: Group = Group { number: 1, name: "2", ranks: &[2, 3] };

/// Returns an entry of a collective, whose time increases with its number.
fn call(group: &Group, number: u64, state: &str) -> Value {
    json!({
        "record_id": 900 + number, "pg_id": group.number, "process_group": [group.name, "undefined"],
        "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1000 * number, "input_sizes": [[4, 2]], "input_dtypes": ["Float"],
        "output_sizes": [[4, 2]], "output_dtypes": ["Float"], "state": state, "retired": state == "completed",
        "timeout_ms": 600_000, "is_p2p": false,
        "frames": [
            { "name": "all_reduce", "filename": "/lib/torch/distributed/distributed_c10d.py", "line": 2501 },
            { "name": "step", "filename": "train.py", "line": 40 + number },
        ],
    })
}

fn open(group: &Group, number: u64) -> Value {
    call(group, number, "scheduled")
}

fn message(group: &Group, name: &str) -> Value {
    with(open(group, 1), json!({ "is_p2p": true, "p2p_seq_id": 1, "profiling_name": format!("nccl:{name}") }))
}

/// The last call that a rank made on a group, and the last call that it completed.
type Status = [u64; 2];

/// Returns the dump of a rank, with the status of the group of all ranks and of its half.
fn dump(rank: usize, status: [Status; 2], entries: &[Value]) -> Value {
    let groups = [ALL, if rank < 2 { LOW } else { HIGH }];
    let (mut configurations, mut states) = (json!({}), json!({}));
    for (Group { number, name, ranks }, [called, completed]) in groups.into_iter().zip(status) {
        configurations[name] = json!({ "name": name, "desc": "undefined", "ranks": format!("{ranks:?}") });
        states[number.to_string()] = json!({
            "last_enqueued_collective": called, "last_started_collective": -1,
            "last_completed_collective": completed,
        });
    }
    json!({
        "version": "2.10", "nccl_version": "2.29.3", "pg_config": configurations, "pg_status": states,
        "entries": entries,
    })
}

/// Compares the dumps of ranks.
fn diff(session: &mut Session, case: &str, dumps: &[Option<Value>]) {
    for (rank, dump) in dumps.iter().enumerate().filter_map(|(rank, dump)| Some((rank, dump.as_ref()?))) {
        session.write(&format!("{case}/trace_{rank}"), dump.to_string());
    }
    session.write(&format!("{case}/notes.txt"), "not a dump");
    session.nccl(&format!("recorder diff {case}"));
}

#[test]
fn ranks_that_hold_up_a_job_are_named() {
    let mut session = Session::new();
    let mut case = |name: &str, dumps: [Option<Value>; 4]| diff(&mut session, name, &dumps);
    let done = |group: &Group| call(group, 7, "completed");
    let idle = |rank| Some(dump(rank, [[7, 7], [5, 5]], &[done(&ALL)]));
    case("agreement", [idle(0), idle(1), idle(2), idle(3)]);
    let busy = |rank| Some(dump(rank, [[8, 7], [5, 5]], &[done(&ALL), open(&ALL, 8)]));
    case("open_calls_of_all", [busy(0), busy(1), busy(2), busy(3)]);
    case("call_that_one_has_not_made", [busy(0), busy(1), busy(2), idle(3)]);
    // Rank 2 is behind because it waits for rank 3, whose dump has only the numbers of its last calls.
    let waiting = Some(dump(2, [[7, 7], [6, 5]], &[open(&HIGH, 6)]));
    let silent = || Some(dump(3, [[7, 7], [5, 5]], &[]));
    case("rank_that_is_behind_as_it_waits", [busy(0), busy(1), waiting, silent()]);
    // The ring of rank 3 has overwritten call 6, which rank 3 has completed.
    let early = |rank| Some(dump(rank, [[8, 5], [5, 5]], &[open(&ALL, 6), open(&ALL, 7), open(&ALL, 8)]));
    let later = Some(dump(3, [[8, 7], [5, 5]], &[open(&ALL, 8)]));
    case("calls_that_completed_on_one", [early(0), busy(1), busy(2), later.clone()]);
    case("rank_without_a_dump", [busy(0), busy(1), None, later]);
    let crossed = [
        Some(dump(0, [[8, 7], [5, 5]], &[open(&ALL, 8)])),
        Some(dump(1, [[7, 7], [6, 5]], &[open(&LOW, 6)])),
    ];
    let [one, other] = crossed;
    // Rank 3 waits for rank 1, and rank 2 for rank 3: neither is part of the circle.
    let waiting = Some(dump(2, [[8, 7], [6, 5]], &[open(&ALL, 8), open(&HIGH, 6)]));
    case("groups_in_another_order", [one, other, waiting, busy(3)]);
    for (name, change) in [
        ("another_operation", json!({ "profiling_name": "nccl:broadcast" })),
        ("another_type", json!({ "input_dtypes": ["Double"] })),
        ("another_size", json!({ "input_sizes": [[4, 3]] })),
    ] {
        let wrong = Some(dump(1, [[8, 7], [5, 5]], &[with(open(&ALL, 8), change)]));
        case(name, [busy(0), wrong, busy(2), busy(3)]);
    }
    let quiet = |rank| Some(dump(rank, [[0, 0], [0, 0]], &[]));
    let receiver = Some(dump(1, [[0, 0], [0, 0]], &[message(&ALL, "recv 1<-0")]));
    case("message_that_nobody_sends", [quiet(0), receiver.clone(), quiet(2), quiet(3)]);
    let sender = Some(dump(0, [[0, 0], [0, 0]], &[message(&ALL, "send 0->1")]));
    case("message_with_both_ends", [sender, receiver, quiet(2), quiet(3)]);
    session.check("recorder_pytorch");
}

#[test]
fn file_that_is_no_dump_is_refused_by_name() {
    let session = Session::new();
    session.write("trace_0", dump(0, [[7, 7], [5, 5]], &[]).to_string());
    session.replay("recorder_pytorch_refused", Session::shell);
}

/// PyTorch writes integers as short as possible, and each string once.
#[test]
fn pickle_is_read() {
    let session = Session::new();
    session.write("trace_1", include_bytes!("trace.pickle"));
    session.write("trace_0", dump(0, [[6, 6], [5, 5]], &[]).to_string());
    let command = &mut nccl("recorder diff trace_0 trace_1");
    let (stdout, _) = run(command.current_dir(session.path("")), 1);
    assert_has(&stdout, &["rank 0 has not called collective 7, nccl:all_reduce of 4x2 Float"]);
}

//! The faults of a rank, each in each call of the others: the CPU backend, one process a rank. The wait for a stream is
//! on the stand-in for CUDA, which this builds.
//!
//! In every cell the other ranks return by the deadline with an error that names the call, and the rank to blame where it
//! can be known. Then they join a new communicator, and have no thread, file or mapping more than before.
//!
//! `cargo test --test faults matrix` runs some cells, `cargo test --test faults matrix -- --ignored` all of them, and with
//! `LIBNCCL_TEST_FAULTS=write` writes what happened to `docs/generated/faults.md`.

mod call;
mod cell;
#[path = "../../../examples/common/mod.rs"]
mod common;
mod fault;
mod page;
mod rank;

use std::thread;

use call::Call;
use cell::Row;
use fault::Fault;

/// Returns the outcomes of the cells; fails with all that are not as they should be.
fn run(calls: &[Call], faults: &[Fault]) -> Vec<Row> {
    let libraries = tempfile::tempdir().unwrap();
    if calls.contains(&Call::Synchronize) {
        libnccl_test_support::install(libraries.path());
    }
    let mut problems = Vec::new();
    let mut outcome = |call: Call, fault: Fault| {
        let outcome = call.meets(fault).then(|| cell::run(libraries.path(), call, fault)).transpose();
        outcome.unwrap_or_else(|problem| {
            problems.push(format!("{call} x {fault}: {problem}"));
            None
        })
    };
    let row = |call: &Call| {
        let outcomes = faults.iter().map(|fault| outcome(*call, *fault)).collect();
        Row { call: *call, outcomes }
    };
    let table = calls.iter().map(row).collect();
    assert!(problems.is_empty(), "{} cells:\n{}", problems.len(), problems.join("\n"));
    table
}

#[test]
fn survivors_of_each_fault_in_a_collective_return() {
    run(&[Call::AllReduce], &Fault::ALL);
}

#[test]
fn survivors_of_a_killed_rank_return_from_each_call() {
    // Side by side, as most of their time the ranks wait.
    thread::scope(|scope| {
        for call in Call::ALL.iter().filter(|call| **call != Call::Synchronize) {
            scope.spawn(|| run(&[*call], &[Fault::Killed]));
        }
    });
}

#[test]
#[cfg_attr(not(feature = "cudarc"), ignore = "builds the stand-in for CUDA")]
fn survivors_of_a_killed_or_stopped_rank_return_from_the_wait_for_a_stream() {
    run(&[Call::Synchronize], &[Fault::Killed, Fault::Stopped]);
}

#[test]
#[ignore = "takes a minute: .ci/long"]
fn survivors_of_each_fault_return_from_each_call() {
    let table = run(Call::ALL, &Fault::ALL);
    let cells = table.iter().flat_map(|row| &row.outcomes).flatten().count();
    assert!(cells >= 72, "{cells} cells");
    page::check(&table);
}

//! `nccl bench`.

use std::time::Instant;

use crate::common::{LIMIT, NCCL};
use crate::doctor::has_library;
use crate::snapshot::Session;

#[test]
fn rows_are_those_of_the_options() {
    Session::new().replay("bench_rows", Session::bench_rows);
}

#[test]
fn operations_are_measured_and_tables_name_what_was_not() {
    Session::new().replay("bench_tables", Session::shell);
    Session::new().replay("bench_operations", Session::shell);
}

#[test]
fn invalid_command_lines_are_refused() {
    Session::new().replay("bench_command_line", Session::shell);
}

/// Expects only the error of the rank, within seconds, and no measurements.
#[test]
fn failing_rank_ends_the_others() {
    Session::new().replay("bench_failing_rank", |session, line| {
        let start = Instant::now();
        session.shell(line);
        assert!(start.elapsed() < LIMIT);
    });
}

/// The CPU backend must not be measured instead of a named library.
#[test]
fn bench_without_nccl_or_with_a_wrong_named_library_says_so() {
    let mut session = Session::new();
    session.redact("[NCCL]", NCCL);
    session.replay("bench_wrong_library", Session::shell);
    if !has_library() {
        Session::new().replay("bench_without_library", Session::shell);
    }
}

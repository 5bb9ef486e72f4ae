//! `nccl bench`.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::Instant;

use crate::common::{LIMIT, NCCL, bench, ended, nccl};
use crate::doctor::has_library;
use crate::snapshot::Session;

/// Manually started ranks of a job, one of which is configured to use another library.
#[test]
fn rank_without_its_library_ends_the_others_with_its_reason() {
    let arguments = ["all_reduce -b 8 -e 8 -n 1", "pairs --size 8"];
    for (failing, arguments) in [(0, arguments[0]), (2, arguments[0]), (1, arguments[1])] {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let started = Instant::now();
        let ranks = [0, 1, 2].map(|rank| {
            let mut command = if rank == failing {
                nccl(&format!("bench {arguments} --library /nowhere/libnccl.so.2"))
            } else {
                bench(arguments)
            };
            for (name, value) in
                [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 3), ("LOCAL_WORLD_SIZE", 3)]
            {
                command.env(name, value.to_string());
            }
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        for (rank, child) in ranks.into_iter().enumerate() {
            let (_, stderr) =
                ended(child.wait_with_output().unwrap(), 1, &format!("rank {rank}: {arguments}"));
            let start =
                if rank == failing { "error: ".into() } else { format!("error: rank {failing} failed: ") };
            assert!(
                stderr.starts_with(&start) && stderr.contains("/nowhere/libnccl.so.2"),
                "{start}: {stderr}"
            );
        }
        assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
    }
}

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

//! `nccl bench`.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::Instant;

use crate::common::{LIMIT, NCCL, OPERATIONS, assert_has, bench, ended, nccl, run};
use crate::doctor::has_library;
use crate::snapshot::Session;

/// Returns the rows of a run, which must succeed.
fn rows(arguments: &str) -> Vec<Vec<String>> {
    let (stdout, stderr) = run(&mut bench(arguments), 0);
    assert_has(&stdout, &["\n# Out of bounds values : 0 OK\n", "\n# Avg bus bandwidth    : "]);
    assert_eq!(stderr, "", "{arguments}");
    let rows = stdout.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| row.split_whitespace().map(ToOwned::to_owned).collect()).collect()
}

/// Runs each operation with three sizes, and expects no mismatches.
fn check_operations(arguments: &[&str]) {
    for (operation, arguments) in
        OPERATIONS.iter().flat_map(|operation| arguments.iter().map(move |arguments| (*operation, arguments)))
    {
        let is_hypercube = operation == "hypercube";
        // A hypercube needs a power of two of ranks, and separate threads.
        if is_hypercube && ["--ranks 3", "-g", "-m"].iter().any(|option| arguments.contains(option)) {
            continue;
        }
        let rows = rows(&format!("{operation} -b 1K -e 96K -f 8 -n 2 -w 1 {arguments}"));
        assert_eq!(rows.len(), 3, "{operation} {arguments}");
        for row in rows {
            // A hypercube has no reduction.
            assert_eq!(row.len(), if is_hypercube { 12 } else { 13 }, "{row:?}");
            assert_eq!(row[row.len() - 5], "0", "{row:?}");
            let in_place =
                if matches!(operation, "sendrecv" | "alltoall" | "alltoallv") { "N/A" } else { "0" };
            assert_eq!(row[row.len() - 1], in_place, "{row:?}");
        }
    }
}

#[test]
fn bench_runs_every_operation() {
    check_operations(&["--ranks 1", "--ranks 2", "--ranks 3", "--ranks 4", "--ranks 2 --processes"]);
    // Several ranks of a thread, and parts of buffers.
    check_operations(&["-t 2 -g 2", "-g 3 -d half", "--ranks 4 -u 3 -c 2 -z 1", "--ranks 3 -m 3"]);
}

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
fn bench_accepts_the_other_options_of_nccl_tests() {
    for arguments in
        ["-z 2", "-z 3", "-T 30", "-C 1", "-p 1", "-a 0", "-a 2", "-a 3", "-M 0", "-R 0", "-G 0", "-y 0"]
    {
        assert_eq!(rows(&format!("reduce -b 1K -e 1K {arguments}")).len(), 1, "{arguments}");
    }
    let (stdout, _) = run(&mut bench("reduce -b 1K -e 1K -I 1 -K 2 -S 1"), 0);
    let columns = "  #wrong    i_min    i_max    i_p99    i_cv%  ";
    assert_has(&stdout, &[columns, &format!("{columns}         timestamp\n")]);
    let row = stdout.lines().find(|line| !line.starts_with('#')).unwrap();
    assert_eq!(row.split_whitespace().count(), 13 + 8 + 2, "{row:?}");
}

#[test]
fn tables_name_what_was_measured_and_notes_what_was_not() {
    Session::new().replay("bench_tables", Session::shell);
    let mut command = bench("all_reduce -b 8 -e 8");
    let (_, stderr) = run(command.env("NCCL_TESTS_SPLIT", "MOD 2"), 0);
    assert!(stderr.starts_with("warning: NCCL_TESTS_SPLIT is ignored: "), "{stderr}");
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

//! The output of `nccl bench` other than its table, with planted faults and signals.

use std::process::Command;
use std::thread;

use serde_json::Value;

use crate::common::{self, bench, changed_library, json, list, nccl, run, undisturbed};
use crate::snapshot::Session;

/// Runs a command, which must exit with this status. Returns the JSON on its stdout.
fn report(command: &mut Command, status: i32) -> Value {
    json(&run(command, status).0)
}

fn numbers(list: &[Value], field: &str) -> Vec<f64> {
    list.iter().map(|value| value[field].as_f64().unwrap_or_else(|| panic!("no {field}: {value}"))).collect()
}

/// Replaces variable data: times and bandwidths, which must not be negative, and the ranks' processes.
fn without_times(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            assert!(number.as_f64() >= Some(0.0), "{number}");
            *value = "[NUMBER]".into();
        }
        Value::Array(values) => values.iter_mut().for_each(without_times),
        Value::Object(fields) => {
            let varying = ["started", "program", "host", "pid", "version"];
            for name in varying.into_iter().filter(|name| fields.contains_key(*name)).collect::<Vec<_>>() {
                fields.insert(name.into(), format!("[{}]", name.to_uppercase()).into());
            }
            fields.values_mut().for_each(without_times);
        }
        _ => {}
    }
}

#[test]
fn files_errors_and_mismatches_are_reported() {
    Session::new().replay("bench_output", Session::shell);
}

#[test]
fn signals_and_killed_ranks_keep_the_rows_that_were_measured() {
    Session::new().replay("bench_signals", Session::shell);
}

#[test]
fn json_has_the_iterations_of_every_rank() {
    let (mut session, mut report_of_threads) = (Session::new(), None);
    for how in ["--ranks 3", "--ranks 3 --processes", "-g 3"] {
        let arguments = format!("scatter {how} -b 1K -e 4K -f 4 -n 3 -r 2 --json");
        let mut report = report(&mut bench(&arguments), 0);
        for row in list(&report["rows"]) {
            for rank in
                [&row["out_of_place"], &row["in_place"]].map(|form| list(&form["iterations"])).concat()
            {
                let order = ["min_us", "median_us", "p99_us", "max_us"].map(|field| rank[field].as_f64());
                assert!(order.is_sorted(), "{rank}");
            }
        }
        without_times(&mut report);
        // Only the start differs.
        let [launch, command] = ["launch", "command"].map(|name| report[name].take());
        session.add(&format!("# {launch} {command}"), "");
        if how == "--ranks 3" {
            session.add("# JSON", &format!("{report:#}\n"));
            report_of_threads = Some(report);
        } else {
            assert_eq!(Some(report), report_of_threads);
        }
    }
    session.check("bench_json");
}

#[test]
fn json_of_each_command_is_valid_although_the_library_prints() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let library = changed_library(
        directory.path(),
        "ncclResult_t ncclGetVersion(int *version) {
            dprintf(1, \"a line of the library\\n\");
            return pncclGetVersion(version);
        }",
    );
    for arguments in [
        "doctor",
        "env",
        "bench all_reduce --ranks 2 -e 8 -n 1",
        "bench all_reduce --ranks 2 -e 8 -n 1 --processes",
        "bench pairs --ranks 2 -s 8",
    ] {
        let mut command = nccl(&format!("{arguments} --json --library"));
        let output = command.arg(&library).output().expect("the program starts");
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(serde_json::from_str::<Value>(&stdout).is_ok(), "{arguments}: {stdout}");
        // The doctor loads the library in a child process, whose streams it reads.
        assert_eq!(
            stderr.contains("a line of the library\n"),
            arguments != "doctor",
            "{arguments}: {stderr}"
        );
    }
}

#[test]
fn planted_slow_rank_has_the_longest_own_time() {
    let check = |how: &str| {
        let mut command = bench(&format!("all_reduce --ranks 4 {how} -b 1K -e 1K -n 1 -w 0 --json"));
        let report = report(command.env("LIBNCCL_CPU_PLANT", "slow:2:40000"), 0);
        for form in ["out_of_place", "in_place"] {
            let own = numbers(list(&report["rows"][0][form]["iterations"]), "own_us");
            let slowest = own[0].max(own[1]).max(own[3]);
            assert!(own[2] > f64::max(40_000.0, 2.0 * slowest), "{how} {form}: {own:?}");
        }
    };
    // Most of the time, they sleep.
    thread::scope(|scope| {
        for how in ["", "--processes"] {
            scope.spawn(move || undisturbed(|| check(how)));
        }
    });
}

#[test]
fn progress_is_drawn_on_a_terminal_only() {
    for how in ["", "--processes"] {
        let command = bench(&format!("all_reduce --ranks 2 {how} -b 8 -e 8 -n 1 -N 20000"));
        let (stdout, _) = common::interrupted(command, "/20000 rows, 8 bytes of float");
        assert!(!stdout.contains("/20000 rows"), "{how}: {stdout}");
    }
}

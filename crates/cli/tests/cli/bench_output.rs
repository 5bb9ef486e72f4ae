//! The output of `nccl bench` other than its table, with planted faults and signals.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{
    self, MARK, NCCL, assert_has, bench, changed_library, ended, json, lines, list, marked, nccl, read, run,
    send, undisturbed,
};
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

/// Starts a run that would take days, waits for two rows, and sends a signal to it. Returns the exit status and stdout.
fn interrupted(how: &str, signal: Signal, file: &Path) -> (Option<i32>, String) {
    let mut command =
        bench(&format!("all_reduce --ranks 3 -b 8 -e 8 -n 1 -N 0 {how} --json={}", file.display()));
    command.env(MARK, file).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let (mut all, mut rows) = (String::new(), 0);
    while rows < 2 {
        let mut line = String::new();
        stdout.read_line(&mut line).expect("text");
        rows += usize::from(!line.starts_with('#'));
        all += &line;
    }
    send(child.id(), signal);
    let start = Instant::now();
    stdout.read_to_string(&mut all).expect("text");
    let status = child.wait().expect("it ends").code();
    assert!(start.elapsed() < Duration::from_secs(10));
    (status, all)
}

#[test]
fn signal_prints_what_was_measured() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("a.json");
    for (how, signal, expected) in [
        ("", Signal::INT, 130),
        ("--processes", Signal::INT, 130),
        ("", Signal::TERM, 143),
        ("--processes", Signal::TERM, 143),
    ] {
        let (status, stdout) = interrupted(how, signal, &file);
        assert_eq!(status, Some(expected), "{how} {signal:?}: {stdout}");
        let rows = stdout.lines().filter(|line| !line.starts_with('#')).count();
        let end = format!("# Interrupted after {rows} rows\n# Out of bounds values : 0 OK\n");
        assert_has(&stdout, &[&end]);
        let report = json(&read(&file));
        assert_eq!((&report["interrupted"], list(&report["rows"]).len()), (&true.into(), rows));
        assert_eq!(marked(file.to_str().expect("text")), [], "{how} {signal:?}");
        fs::remove_file(&file).expect("it exists");
    }
}

#[test]
fn signal_that_is_ignored_at_the_start_is_ignored_by_bench() {
    for how in ["", "--processes"] {
        let line =
            format!("trap '' INT; exec '{NCCL}' bench all_reduce --ranks 2 -e 8 -n 1 -N 0 --cpu {how}");
        let mut child = Command::new("sh").args(["-c", &line]).stdout(Stdio::piped()).spawn().unwrap();
        let mut rows = lines(&mut child).filter(|line| !line.starts_with('#'));
        for signal in [Signal::INT, Signal::TERM] {
            // It continues to measure after the first of two signals.
            assert_eq!(rows.by_ref().take(100).count(), 100, "{how}: it ends before {signal:?}");
            send(child.id(), signal);
        }
        rows.for_each(drop);
        assert_eq!(child.wait().unwrap().code(), Some(143), "{how}");
    }
}

/// Rank 2 is killed during the measurement.
#[test]
fn killed_rank_ends_the_others_which_keep_the_rows_that_were_measured() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("a.json");
    let arguments = format!("all_reduce --ranks 3 -b 8 -e 8 -n 1 -N 0 --processes --json={}", file.display());
    let mut child =
        bench(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = lines(&mut child);
    let rank = lines.find(|line| line.starts_with("#  Rank  2 ")).expect("rank 2 is listed");
    let pid = rank.split_whitespace().nth(6).expect("a process id");
    lines.find(|line| !line.starts_with('#')).expect("a row");
    send(pid.parse().expect("a number"), Signal::KILL);
    lines.for_each(drop);
    let (_, stderr) = ended(child.wait_with_output().expect("it ends"), 137, "the parent");
    let expected =
        format!("nccl run: rank 2 (process {pid}) was ended by signal 9 (SIGKILL); ending the others\n");
    assert_has(&stderr, &[&expected]);
    let report = json(&read(&file));
    assert_eq!(report["interrupted"], true);
    assert!(!list(&report["rows"]).is_empty(), "{report}");
}

#[test]
fn progress_is_drawn_on_a_terminal_only() {
    for how in ["", "--processes"] {
        let command = bench(&format!("all_reduce --ranks 2 {how} -b 8 -e 8 -n 1 -N 20000"));
        let (stdout, _) = common::interrupted(command, "/20000 rows, 8 bytes of float");
        assert!(!stdout.contains("/20000 rows"), "{how}: {stdout}");
    }
}

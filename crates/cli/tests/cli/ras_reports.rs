//! `nccl ras` on incomplete or inconsistent reports, and on jobs that have not started yet.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};

use crate::common::{LIMIT, Process, json, nccl};
use crate::snapshot::Session;

/// Replies to requests with this report, as text or JSON. An NCCL without JSON replies to `SET FORMAT` with an error. There is no
/// verbose report.
fn serve(listener: TcpListener, report: String) {
    let is_text = !report.starts_with('{');
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // The client may disconnect before the last reply.
            let _ = reply(&stream, &report, is_text);
        }
    });
}

fn reply(mut stream: &TcpStream, report: &str, is_text: bool) -> std::io::Result<()> {
    for line in BufReader::new(stream).lines() {
        match line?.as_str() {
            "CLIENT PROTOCOL 2" => stream.write_all(b"SERVER PROTOCOL 2\n")?,
            "SET FORMAT json" if is_text => stream.write_all(b"ERROR: Unknown command SET FORMAT json\n")?,
            "STATUS" => return writeln!(stream, "{report}"),
            _ => stream.write_all(b"OK\n")?,
        }
    }
    Ok(())
}

/// Returns the report of two healthy ranks.
fn sound() -> Value {
    let rank = |rank: u64| {
        json!({
            "rank": rank, "host": "10.0.0.1", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank,
            "status": { "init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false },
            "collective_counts": { "Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 7 },
        })
    };
    json!({
        "nccl_version": "2.32.3", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2026-11-26 10:00:00", "communicators_count": 1,
        "communicators": [{
            "hash": "0xab", "secondary_hash": "0x1:0x2", "size": 2, "ranks_count": 2, "missing_ranks_count": 0,
            "ranks": [rank(0), rank(1)], "missing_ranks": [],
        }],
        "ras": { "collection_time_sec": 0.0, "timeouts_count": 0 },
    })
}

/// Runs `nccl ras` on a report.
fn ras(report: &Value, arguments: &str) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener, report.to_string());
    nccl(&format!("ras --addr {address} --timeout 2 {arguments}")).output().unwrap()
}

#[test]
fn report_that_is_incomplete_or_cannot_be_is_a_problem_with_an_exit_status() {
    let cases = [
        ("/communicators/0/ranks/1/status", Some(json!(null))),
        ("/communicators/0/ranks/1/collective_counts", None),
        ("/communicators/0/ranks/1/rank", Some(json!(0))),
        ("/communicators/0/size", Some(json!(4))),
        ("/communicators/0/ranks", Some(json!([]))),
        ("/communicators_count", Some(json!(9))),
        ("/cuda_driver_version", None),
    ];
    let mut session = Session::new();
    thread::scope(|scope| {
        let running = cases.map(|(pointer, value)| {
            let title = format!("# {pointer}: {value:?}");
            let mut report = sound();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            let parent = report.pointer_mut(parent).unwrap();
            match value {
                Some(value) => parent[key] = value,
                None => drop(parent.as_object_mut().unwrap().remove(key)),
            }
            let run = move || ["", "--json", "--prometheus"].map(|arguments| ras(&report, arguments));
            (title, scope.spawn(run))
        });
        for (title, running) in running {
            let [text, object, metrics] = running.join().unwrap();
            assert_eq!([object.status, metrics.status], [text.status; 2], "{title}");
            session.ended(&format!("nccl ras {title}"), text);
            let verdicts = &json(&String::from_utf8(object.stdout).unwrap())["verdicts"];
            session.add("# verdicts", &format!("{verdicts:#}\n"));
            let metrics = String::from_utf8(metrics.stdout).unwrap();
            let problems = metrics.lines().find(|line| line.starts_with("nccl_ras_problems ")).unwrap();
            session.add(problems, "");
        }
    });
    session.check("ras_incomplete");
}

#[test]
fn verdict_is_printed_if_the_verbose_report_fails_after_it() {
    let mut session = Session::new();
    let mut report = sound();
    report["communicators"][0]["ranks"][1]["status"]["async_error"] = json!(6);
    session.ended("nccl ras --verbose", ras(&report, "--verbose"));
    session.check("ras_verbose");
}

#[test]
fn report_without_a_communicator_that_is_ready_is_no_sound_job() {
    let mut session = Session::new();
    let initialising =
        json!({ "hash": "0x0", "secondary_hash": "0x0:0x0", "size": 0, "ranks": [], "missing_ranks": [] });
    for (communicators, count) in [(json!([]), 0), (json!([initialising]), 1)] {
        let mut report = sound();
        (report["communicators"], report["communicators_count"]) = (communicators, json!(count));
        session.ended("nccl ras", ras(&report, ""));
    }
    session.check("ras_not_ready");
}

/// Returns the lines of a pipe, as they arrive.
fn received(pipe: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    receiver
}

/// Starts to watch a job that has not started, then starts it with this report. Returns the lines on stdout.
fn watch_until_it_starts(report: String, arguments: &str) -> (Process, Receiver<String>) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = nccl(&format!("ras --addr {address} --watch 0.1 {arguments}"));
    let mut watch: Child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, stderr) = (received(watch.stdout.take().unwrap()), received(watch.stderr.take().unwrap()));
    let watch = Process(watch);
    let waiting = stderr.recv_timeout(LIMIT).expect("it does not end, and says what it waits for");
    let (time, problem) = waiting.split_once(" waiting: ").unwrap();
    humantime::parse_rfc3339(time).unwrap();
    assert!(problem.starts_with("no process of a job serves RAS requests at 127.0.0.1:"), "{problem}");
    serve(TcpListener::bind(address).unwrap(), report);
    (watch, stdout)
}

/// Also an NCCL without JSON.
#[test]
fn watch_waits_for_the_job_and_says_when_each_report_is_of() {
    let text = "NCCL version 2.24.3\n\nErrors\n======\n\nWarnings\n========\n\n";
    for (report, first) in [
        (sound().to_string(), "note: communicator 00000000000000ab of 2 ranks is idle"),
        (text.into(), "NCCL version 2.24.3"),
    ] {
        let (_watch, lines) = watch_until_it_starts(report, "");
        for _ in 0..2 {
            let is_time = |line: &String| humantime::parse_rfc3339(line).is_ok();
            let time = std::iter::from_fn(|| lines.recv_timeout(LIMIT).ok()).find(is_time);
            assert!(time.is_some(), "no report");
            let next = lines.recv_timeout(LIMIT).expect("a verdict");
            assert!(next.starts_with(first), "{next}");
        }
    }
}

#[test]
fn watch_as_json_has_the_time_and_nothing_but_json() {
    let (_watch, lines) = watch_until_it_starts(sound().to_string(), "--json");
    let object: Vec<String> =
        std::iter::from_fn(|| lines.recv_timeout(LIMIT).ok()).take_while(|line| line != "}").collect();
    let report = json(&format!("{}}}", object.join("\n")));
    humantime::parse_rfc3339(report["time"].as_str().unwrap()).unwrap();
}

//! `nccl ras` on incomplete or inconsistent reports, and on jobs that have not started yet.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

use crate::common::{LIMIT, Process, json, nccl};
use crate::results::change;
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

/// Returns the report of two healthy ranks, with changes.
fn report(changes: &str) -> Value {
    let mut report = json(include_str!("ras_report.json"));
    change(&mut report, changes);
    report
}

/// Runs `nccl ras` on a report.
fn ras(report: &str, arguments: &str) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener, report.to_owned());
    nccl(&format!("ras --addr {address} --timeout 5 {arguments}")).output().unwrap()
}

/// The commands have the changes to the report as comments. Without options, the verdicts are those of the other formats.
#[test]
fn report_that_is_incomplete_or_cannot_be_is_a_problem_with_an_exit_status() {
    Session::new().replay("ras_reports", |session, line| {
        let (command, changes) = line.split_once(" # ").unwrap();
        // A report of an NCCL without JSON.
        let report = match changes.strip_prefix("text ") {
            Some(text) => text.replace("\\n", "\n"),
            None => report(changes).to_string(),
        };
        let arguments = command.strip_prefix("nccl ras").unwrap();
        let text = ras(&report, arguments);
        let status = text.status;
        session.ended(line, text);
        if arguments.is_empty() && !changes.starts_with("text ") {
            let [object, metrics] = ["--json", "--prometheus"].map(|format| ras(&report, format));
            assert_eq!([object.status, metrics.status], [status; 2], "{line}");
            let verdicts = &json(&String::from_utf8(object.stdout).unwrap())["verdicts"];
            session.add("# verdicts", &format!("{verdicts:#}\n"));
            let metrics = String::from_utf8(metrics.stdout).unwrap();
            session.add(metrics.lines().find(|line| line.starts_with("nccl_ras_problems ")).unwrap(), "");
        }
    });
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
        (report("").to_string(), "note: communicator 00000000000000ab of 2 ranks is idle"),
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
    let (_watch, lines) = watch_until_it_starts(report("").to_string(), "--json");
    let object: Vec<String> =
        std::iter::from_fn(|| lines.recv_timeout(LIMIT).ok()).take_while(|line| line != "}").collect();
    let report = json(&format!("{}}}", object.join("\n")));
    humantime::parse_rfc3339(report["time"].as_str().unwrap()).unwrap();
}

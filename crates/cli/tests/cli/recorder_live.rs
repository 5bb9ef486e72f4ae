//! `nccl recorder diff --pid` on running ranks: three on the CPU backend, of which rank 2 does not call a collective.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs, thread};

use libnccl::{Config, ReduceOp, StreamRef, UniqueId};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Process, assert_has, json, lines, nccl, rank_command, read, run, send, wait_until};
use crate::snapshot::Session;

const RANKS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "the other tests start it as a rank"]
fn rank_process() {
    let (Ok(id), Ok(rank)) = (env::var("LIBNCCL_TEST_ID"), env::var("RANK")) else { return };
    libnccl_observe::Recorder::record_from_env();
    let (nccl, id, rank) = (libnccl_cpu::nccl(), id.parse::<UniqueId>().unwrap(), rank.parse().unwrap());
    let config = Config::new().timeout(2 * PATIENCE);
    let comm = nccl.communicator(RANKS, rank, &id).config(&config).init().unwrap();
    println!("\nready");
    for step in 0..2 {
        if rank == RANKS - 1 && step == 1 {
            // Until it is killed.
            thread::sleep(100 * PATIENCE);
        }
        comm.all_reduce_in_place(&mut [1.0_f32; 8], ReduceOp::Sum, StreamRef::DEFAULT).unwrap();
    }
}

/// Starts all ranks, and returns when they have joined.
fn start(directory: &Path) -> Process {
    let id = libnccl_cpu::nccl().unique_id().unwrap();
    let rank = rank_command("recorder_live::rank_process");
    let mut command = nccl(&format!("run -n {RANKS} --"));
    command.arg(rank.get_program()).args(rank.get_args());
    command.env("LIBNCCL_TEST_ID", id.to_string()).env("LIBNCCL_RECORDER", "16").current_dir(directory);
    // Relative to its directory.
    command.env("LIBNCCL_RECORDER_FILE", "rank").env("LIBNCCL_RECORDER_SIGNAL", "USR2");
    let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = lines(&mut process.0);
    let ready = lines.by_ref().filter(|line| line.ends_with("ready")).take(RANKS).count();
    assert_eq!(ready, RANKS, "a rank ended");
    // Nothing waits for its reader.
    thread::spawn(move || lines.for_each(drop));
    process
}

/// Requests recordings until the ranks are in the collective.
fn diff_when_stuck(arguments: &[&str]) -> Value {
    let (mut report, mut problem) = (Value::Null, String::new());
    let is_stuck = || {
        let output = nccl("recorder diff --json").args(arguments).output().unwrap();
        report = serde_json::from_slice(&output.stdout).unwrap_or_default();
        problem = String::from_utf8_lossy(&output.stderr).into_owned();
        let finding = &report["findings"][0];
        let waiting = finding["calls"].as_array().map_or(0, Vec::len);
        finding["kind"] == "missing_call" && waiting == RANKS - 1
    };
    assert!(wait_until(PATIENCE, is_stuck), "{report:#} {problem}");
    report
}

/// By the process of their launcher, and by their own processes.
#[test]
fn rank_that_is_missing_or_stopped_is_named_and_the_job_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut job = start(directory.path());
    let report = diff_when_stuck(&["--pid", &job.0.id().to_string()]);
    assert_eq!(report["findings"][0]["ranks"], json!([RANKS - 1]), "{report:#}");
    assert_eq!(report["communicators"][0]["recorded"], RANKS, "{report:#}");
    assert!(job.0.try_wait().unwrap().is_none(), "the job has ended");

    let files = [0, 1, 2].map(|rank| directory.path().join(format!("rank{rank}.json")));
    let ids = files.each_ref().map(|file| json(&read(file))["process"].to_string());
    let arguments: Vec<_> = ids.iter().flat_map(|id| ["--pid", id]).collect();
    diff_when_stuck(&arguments);
    fs::remove_file(&files[2]).unwrap();
    let stopped = ids[2].parse().unwrap();
    send(stopped, Signal::STOP);
    let (text, warning) = run(nccl("recorder diff --timeout 500ms").args(arguments), 1);
    assert_has(&text, &["there is no recording of rank 2 of 3", "all_reduce"]);
    assert_has(&warning, &[&format!("process {stopped} has not written")]);
    send(stopped, Signal::CONT);
    send(job.0.id(), Signal::TERM);
    job.0.wait().unwrap();
}

/// The processes become `sleep`: until then, they have the environment of this process.
#[test]
fn process_that_would_die_of_the_signal_is_not_sent_it() {
    Session::new().replay("recorder_live", Session::shell);
}

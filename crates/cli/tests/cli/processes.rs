//! The processes that `nccl bench` starts, which exit with their parent.

use std::fs;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::{LIMIT, MARK, NCCL, bench, marked, nccl, run, send, wait_until};

const RANKS: usize = 3;

/// The time limit for ranks to exit after their parent.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Starts a run that would take days.
fn start(mark: &str, temporary: &TempDir) -> Child {
    let mut command = bench(&format!("all_reduce --processes -n 1000000000 --ranks {RANKS}"));
    command.env(MARK, mark).env("TMPDIR", temporary.path());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts")
}

/// Kills the parent with each signal, at a time between its start and the middle of the measurement.
#[test]
fn killed_parent_leaves_no_rank() {
    const SIGNALS: [Signal; 4] = [Signal::KILL, Signal::TERM, Signal::HUP, Signal::INT];
    let mut ranks_seen = 0;
    // A rank that is killed while it publishes its address leaves its directory behind.
    let temporary = TempDir::new().expect("a directory");
    // The parent, the supervisor and the ranks start one after the other.
    let rounds = SIGNALS.len() * (RANKS + 2);
    for round in 0..rounds {
        let (signal, started) = (SIGNALS[round % SIGNALS.len()], round / SIGNALS.len());
        let mark = format!("{}-{round}", std::process::id());
        let mut parent = start(&mark, &temporary);
        assert!(wait_until(LIMIT, || marked(&mark).len() > started), "round {round}: no {started} processes");
        let nanoseconds =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a date").subsec_nanos();
        thread::sleep(Duration::from_micros(u64::from(nanoseconds % 60_000)));
        // The parent has no environment for a moment, when it becomes `nccl run`.
        ranks_seen += marked(&mark).len().saturating_sub(2);
        send(parent.id(), signal);
        let status = parent.wait().expect("it ends");
        assert!(!status.success(), "{signal:?}: {status}");
        if !wait_until(END_LIMIT, || marked(&mark).is_empty()) {
            let left = marked(&mark);
            for (pid, _) in &left {
                let _ = kill_process(Pid::from_raw(*pid as i32).expect("not 0"), Signal::KILL);
            }
            panic!("round {round}, {signal:?}: the processes {left:?} are left");
        }
    }
    assert!(ranks_seen > rounds, "only {ranks_seen} ranks ran when their parents were killed");
}

/// Kills a comparison of two backends with each signal, while it measures.
#[test]
fn killed_comparison_leaves_no_measurement() {
    let long = "all_reduce -n 1000000000 -b 8 -e 8";
    for processes in ["", "--processes"] {
        let arguments = format!("compare --backend cpu --backend cpu -- {long} {processes}");
        for signal in [Signal::KILL, Signal::TERM, Signal::HUP, Signal::INT] {
            let mark = format!("comparison-{}-{}", std::process::id(), signal.as_raw());
            let mut command = nccl(&format!("bench {arguments}"));
            command.env(MARK, &mark).stdout(Stdio::null()).stderr(Stdio::null());
            let mut parent = command.spawn().expect("the program starts");
            let measures = |(_, line): &(u32, String)| line.contains("--json");
            assert!(wait_until(LIMIT, || marked(&mark).iter().any(measures)), "{arguments}: none measures");
            send(parent.id(), signal);
            parent.wait().expect("it ends");
            let is_over = wait_until(END_LIMIT, || marked(&mark).is_empty());
            let left = marked(&mark);
            for (pid, _) in &left {
                let _ = kill_process(Pid::from_raw(*pid as i32).expect("not 0"), Signal::KILL);
            }
            assert!(is_over, "{arguments}, {signal:?}: the processes {left:?} are left");
        }
    }
}

/// As during a build that replaces it.
#[test]
fn program_whose_file_was_removed_starts_itself_again() {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("nccl");
    let small = "all_reduce --ranks 2 -b 8 -e 8 -n 1";
    for arguments in [
        format!("{small} --processes --cpu"),
        format!("compare --backend cpu --backend cpu --rounds 1 -- {small} --processes"),
    ] {
        // Not a copy: it cannot be executed while another thread's child has it open for writing.
        fs::hard_link(NCCL, &path).expect("a second name");
        let file = fs::File::open(&path).expect("the program");
        fs::remove_file(&path).expect("the name is there");
        let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
        command.arg("bench").args(arguments.split_whitespace());
        let (stdout, _) = run(&mut command, 0);
        assert!(stdout.contains(" 8 "), "{arguments}: {stdout}");
    }
}

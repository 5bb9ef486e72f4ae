//! The processes of `nccl bench --processes`, which end with the one that started them.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

const RANKS: usize = 3;

/// The time in which ranks have to start or to end, on a machine with other work.
const LIMIT: Duration = Duration::from_secs(30);

/// The time in which ranks have to end with their parent.
const END_LIMIT: Duration = Duration::from_secs(2);

/// The variable in the environment by which a test recognises its processes.
const MARK: &str = "LIBNCCL_TEST_MARK";

/// Returns the running processes with this mark.
fn marked(mark: &str) -> Vec<u32> {
    let expected = format!("{MARK}={mark}");
    let processes = fs::read_dir("/proc").expect("/proc").filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse::<u32>().ok()?;
        // That of a process that has ended, but that nobody has waited for, is empty.
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|variable| variable == expected.as_bytes()).then_some(pid)
    });
    processes.collect()
}

fn wait_until(limit: Duration, condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Starts a run that would take days.
fn start(mark: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.args(["bench", "--cpu", "all_reduce", "--processes", "-n", "1000000000"]);
    command.args(["--ranks", &RANKS.to_string()]).env(MARK, mark);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts")
}

/// Kills the parent between the start of the first rank and the middle of the work.
#[test]
fn killed_parent_leaves_no_rank() {
    let mut ranks_seen = 0;
    for (round, signal) in
        [Signal::KILL, Signal::TERM, Signal::HUP, Signal::INT].iter().cycle().enumerate().take(24)
    {
        let mark = format!("{}-{round}", std::process::id());
        let mut parent = start(&mark);
        let started = round % (RANKS + 1);
        assert!(wait_until(LIMIT, || marked(&mark).len() > started), "round {round}: no {started} ranks");
        let nanoseconds =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a date").subsec_nanos();
        thread::sleep(Duration::from_micros(u64::from(nanoseconds % 60_000)));
        ranks_seen += marked(&mark).len() - 1;
        kill_process(Pid::from_child(&parent), *signal).expect("the parent runs");
        let status = parent.wait().expect("it ends");
        assert!(!status.success(), "{signal:?}: {status}");
        if !wait_until(END_LIMIT, || marked(&mark).is_empty()) {
            let left = marked(&mark);
            for pid in &left {
                let _ = kill_process(Pid::from_raw(*pid as i32).expect("not 0"), Signal::KILL);
            }
            panic!("round {round}, {signal:?}: the processes {left:?} are left");
        }
    }
    assert!(ranks_seen > 24, "only {ranks_seen} ranks ran when their parents were killed");
}

/// Starts a rank whose parent, by its environment, is another process than this one.
#[test]
fn rank_whose_parent_has_ended_before_is_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.args(["bench", "--cpu", "all_reduce", "--processes"]);
    command
        .env("LIBNCCL_BENCH_RANK", "1")
        .env("LIBNCCL_BENCH_ID", "00")
        .env("LIBNCCL_BENCH_PARENT", "4194305");
    let output = command.output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let expected = "error: process 4194305, which started this rank, has ended\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

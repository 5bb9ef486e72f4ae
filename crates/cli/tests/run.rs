//! `nccl run`: what ranks are told, how they end, and that none remains.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The time in which something has to happen, on a machine with other work.
const LIMIT: Duration = Duration::from_secs(30);

/// The variable in the environment by which a test recognises its processes.
const MARK: &str = "LIBNCCL_TEST_MARK";

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.arg("run").args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the lines, in the order of their text.
fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = text(bytes).lines().map(ToString::to_string).collect();
    lines.sort();
    lines
}

/// Returns the running processes with a mark, and their command lines.
fn marked(mark: &str) -> Vec<(i32, String)> {
    let expected = format!("{MARK}={mark}");
    let processes = fs::read_dir("/proc").expect("/proc").filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse::<i32>().ok()?;
        // That of a process that has ended, but that nobody has waited for, is empty.
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|variable| variable == expected.as_bytes()).then_some(())?;
        Some((pid, text(&fs::read(format!("/proc/{pid}/cmdline")).ok()?).replace('\0', " ")))
    });
    processes.collect()
}

fn wait_until(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > LIMIT {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process id"), signal).expect("a process that runs");
}

#[test]
fn ranks_get_the_variables_of_torchrun() {
    let names = [
        "RANK",
        "LOCAL_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "MASTER_ADDR",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
    ];
    let script = format!("echo ${}", names.join(" $"));
    let output = run(&["-n", "3", "--restart", "2", "--", "sh", "-c", &script]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected = [0, 1, 2].map(|rank| format!("[{rank}] {rank} {rank} {rank} 3 3 3 0 1 127.0.0.1 0 2"));
    assert_eq!(sorted(&output.stdout), expected);
    let jobs = run(&[
        "-n",
        "2",
        "--",
        "sh",
        "-c",
        "echo $LIBNCCL_RUN_ID $TORCHELASTIC_RUN_ID $MASTER_PORT $LIBNCCL_RUN_ROLE",
    ]);
    let lines = sorted(&jobs.stdout);
    let (one, other) = (&lines[0]["[0] ".len()..], &lines[1]["[1] ".len()..]);
    assert_eq!(one, other, "the ranks of a job have one id and one port, and no role");
    assert_eq!(one.split(' ').count(), 3, "{one}");
}

#[test]
fn output_has_a_prefix_for_each_line_of_each_stream() {
    let script = "printf 'one\\n\\ntwo'; echo three >&2";
    let output = run(&["-n", "11", "--", "sh", "-c", script]);
    let (stdout, stderr) = (sorted(&output.stdout), sorted(&output.stderr));
    for rank in 0..11 {
        for line in ["one", "", "two"] {
            let line = format!("[{rank:2}] {line}");
            assert!(stdout.contains(&line), "{line:?} is not in {stdout:?}");
        }
        assert!(stderr.contains(&format!("[{rank:2}] three")), "{stderr:?}");
    }
    assert_eq!((stdout.len(), stderr.len()), (33, 11), "no colors in a pipe, and nothing else");
}

#[test]
fn first_failure_ends_the_others_and_gives_the_status() {
    let start = Instant::now();
    let output = run(&["-n", "3", "--", "sh", "-c", "[ $RANK != 1 ] || exit 7; sleep 1000"]);
    assert_eq!(output.status.code(), Some(7));
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("nccl run: rank 1 (process ") && stderr.contains("exited with status 7"),
        "{stderr}"
    );

    let output = run(&["-n", "2", "--", "sh", "-c", "[ $RANK != 0 ] || kill -9 $$; sleep 1000"]);
    assert_eq!(output.status.code(), Some(128 + 9));
    assert!(text(&output.stderr).contains("was ended by signal 9 (SIGKILL)"), "{}", text(&output.stderr));
}

#[test]
fn restarts_run_all_ranks_again_until_none_is_left() {
    let script = "[ $RANK != 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3; echo attempt $TORCHELASTIC_RESTART_COUNT";
    let enough = run(&["-n", "2", "--restart", "2", "--", "sh", "-c", script]);
    assert!(enough.status.success(), "{}", text(&enough.stderr));
    let lines = sorted(&enough.stdout);
    for rank in 0..2 {
        assert!(lines.contains(&format!("[{rank}] attempt 2")), "{lines:?}");
    }
    assert!(text(&enough.stderr).contains("starting all ranks again, 2 of 2 times"));
    let too_few = run(&["-n", "2", "--restart", "1", "--", "sh", "-c", script]);
    assert_eq!(too_few.status.code(), Some(3));
}

#[test]
fn log_folder_has_a_file_for_each_stream_of_each_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("logs").display().to_string();
    let script = "echo out $RANK; echo err >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ]";
    let output = run(&["-n", "1", "--restart", "1", "--log-dir", &path, "--", "sh", "-c", script]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for attempt in ["attempt_0", "attempt_1"] {
        let read = |name| fs::read_to_string(Path::new(&path).join(attempt).join("0").join(name)).unwrap();
        assert_eq!((read("stdout.log").as_str(), read("stderr.log").as_str()), ("out 0\n", "err\n"));
    }
}

#[test]
fn program_that_is_not_there_is_an_error() {
    let output = run(&["-n", "2", "--", "/nonexistent/program"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("cannot start /nonexistent/program: No such file or directory"), "{stderr}");
    for arguments in [&["-n", "0", "true"][..], &["-n", "2"], &["true"]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn closed_output_ends_the_ranks() {
    let mut child = command(&["-n", "2", "--", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 8]).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn bench_measures_the_ranks_of_a_launcher_and_one_prints() {
    let nccl = env!("CARGO_BIN_EXE_nccl");
    let output = run(&["-n", "3", "--", nccl, "bench", "all_reduce", "--cpu", "-e", "1K"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.lines().all(|line| line.starts_with("[0] ")), "{stdout}");
    for rank in 0..3 {
        assert!(stdout.contains(&format!("#  Rank  {rank} Group  0 Pid")), "{stdout}");
    }
    assert!(stdout.contains("# Out of bounds values : 0 OK"), "{stdout}");

    let output = run(&["-n", "2", "--", nccl, "bench", "all_reduce", "--cpu", "--ranks", "4"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("error: nccl run started this as rank ") && stderr.contains(" of 2; --ranks"),
        "{stderr}"
    );

    // Each would be a job of its own.
    let mut alone = Command::new(nccl);
    alone.args(["bench", "all_reduce", "--cpu", "-e", "8"]).env("WORLD_SIZE", "2");
    let output = alone.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("RANK is not set"), "{}", text(&output.stderr));
}

/// Starts ranks that each have a child, and waits until all run. The ranks print a line for SIGUSR1 and SIGTERM.
fn start(mark: &str) -> Child {
    let script = "trap 'echo user' USR1; trap 'echo end; exit 5' TERM; sleep 1000 & while :; do wait; done";
    let mut command = command(&["-n", "3", "--", "sh", "-c", script]);
    let child = command.env(MARK, mark).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let is_started = || marked(mark).iter().filter(|(_, line)| line.starts_with("sleep")).count() == 3;
    assert!(wait_until(is_started), "{:?}", marked(mark));
    child
}

fn mark(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[test]
fn signals_reach_every_rank_once() {
    let mark = mark("signals");
    let mut child = start(&mark);
    let pid = child.id() as i32;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || {
        let mut lines: Vec<String> = (0..3).map(|_| lines.next().unwrap().unwrap()).collect();
        lines.sort();
        lines
    };
    send(pid, Signal::USR1);
    assert_eq!(next(), ["[0] user", "[1] user", "[2] user"]);
    send(pid, Signal::TERM);
    assert_eq!(next(), ["[0] end", "[1] end", "[2] end"]);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(marked(&mark), [], "the children of the ranks have no reason to live");
}

/// Kills one of the processes, chosen by `pick`, and checks that no other remains.
fn kill_one(mark: &str, pick: impl Fn(&[(i32, String)]) -> i32) {
    let mut child = start(mark);
    let victim = pick(&marked(mark));
    send(victim, Signal::KILL);
    let is_over = || marked(mark).is_empty();
    assert!(wait_until(is_over), "{victim} was killed, {:?} remain", marked(mark));
    let status = child.wait().unwrap();
    assert!(!status.success() || status.signal().is_some(), "{status}");
}

/// Returns the process whose command line starts so and that was started first or last.
fn supervisor_or_front(processes: &[(i32, String)], index: usize) -> i32 {
    let mut own: Vec<i32> =
        processes.iter().filter(|(_, line)| line.contains("nccl run")).map(|(pid, _)| *pid).collect();
    own.sort_unstable();
    own[index]
}

#[test]
fn killed_front_leaves_no_process() {
    kill_one(&mark("front"), |processes| supervisor_or_front(processes, 0));
}

#[test]
fn killed_supervisor_leaves_no_process() {
    kill_one(&mark("supervisor"), |processes| supervisor_or_front(processes, 1));
}

#[test]
fn killed_rank_leaves_no_process() {
    kill_one(&mark("rank"), |processes| {
        processes.iter().find(|(_, line)| line.starts_with("sh ")).unwrap().0
    });
}

/// `LIBNCCL_TEST_KILLS` rounds, 10 by default: in each a process is killed at any time, and nothing remains of the run:
/// no process, and no file or socket.
#[test]
fn random_kills_leave_nothing() {
    let rounds =
        std::env::var("LIBNCCL_TEST_KILLS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(10);
    let mut random = 1u64;
    let mut next = |limit: usize| {
        // A linear congruential generator, of which the high bits are good.
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (random >> 33) as usize % limit
    };
    let files = || fs::read_dir("/dev/shm").map_or(0, |entries| entries.count());
    let before = files();
    for round in 0..rounds {
        let mark = mark(&format!("random-{round}"));
        let mut command = command(&["-n", "4", "--restart", "1", "--", "sh", "-c", "sleep 1000 & wait"]);
        let mut child = command.env(MARK, &mark).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_micros(next(60_000) as u64));
        let processes = marked(&mark);
        let victim = processes.get(next(processes.len().max(1))).map_or(child.id() as i32, |(pid, _)| *pid);
        let _ = kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL);
        if victim != child.id() as i32 {
            // The ranks may have been started again, or a child of one was killed.
            thread::sleep(Duration::from_millis(50));
            send(child.id() as i32, Signal::TERM);
        }
        child.wait().unwrap();
        let is_over = || marked(&mark).is_empty();
        assert!(
            wait_until(is_over),
            "round {round}: {victim} of {processes:?} was killed, {:?} remain",
            marked(&mark)
        );
    }
    assert_eq!(files(), before);
}

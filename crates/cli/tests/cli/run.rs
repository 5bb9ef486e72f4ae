//! `nccl run`: what ranks are told, how they end, and that none remains.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{
    LIMIT, MARK, NCCL, Process, assert_has, bench, ended, lines, marked, nccl, read, run, send, wait_until,
};

/// Returns `nccl run` with these options and a script for its ranks.
fn script(options: &str, script: &str) -> Command {
    let mut command = nccl(&format!("run {options} -- sh -c"));
    command.arg(script);
    command
}

/// Returns the lines, in the order of their text.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort();
    lines
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
    let (stdout, _) = run(&mut script("-n 3 --restart 2", &format!("echo ${}", names.join(" $"))), 0);
    let expected = [0, 1, 2].map(|rank| format!("[{rank}] {rank} {rank} {rank} 3 3 3 0 1 127.0.0.1 0 2"));
    assert_eq!(sorted(&stdout), expected);
    let job = "echo $LIBNCCL_RUN_ID $TORCHELASTIC_RUN_ID $MASTER_PORT $LIBNCCL_RUN_ROLE";
    let (stdout, _) = run(&mut script("-n 2", job), 0);
    let lines = sorted(&stdout);
    let (one, other) = (&lines[0]["[0] ".len()..], &lines[1]["[1] ".len()..]);
    assert_eq!(one, other, "the ranks of a job have one id and one port, and no role");
    assert_eq!(one.split(' ').count(), 3, "{one}");
}

#[test]
fn output_has_a_prefix_for_each_line_of_each_stream() {
    let (stdout, stderr) = run(&mut script("-n 11", "printf 'one\\n\\ntwo'; echo three >&2"), 0);
    let (stdout, stderr) = (sorted(&stdout), sorted(&stderr));
    for rank in 0..11 {
        for line in ["one", "", "two"] {
            let line = format!("[{rank:2}] {line}");
            assert!(stdout.contains(&&*line), "{line:?} is not in {stdout:?}");
        }
        assert!(stderr.contains(&&*format!("[{rank:2}] three")), "{stderr:?}");
    }
    assert_eq!((stdout.len(), stderr.len()), (33, 11), "no colors in a pipe, and nothing else");
}

#[test]
fn first_failure_ends_the_others_and_gives_the_status() {
    let start = Instant::now();
    let (_, stderr) = run(&mut script("-n 3", "[ $RANK != 1 ] || exit 7; sleep 1000"), 7);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    assert_has(&stderr, &["nccl run: rank 1 (process ", "exited with status 7"]);

    let (_, stderr) = run(&mut script("-n 2", "[ $RANK != 0 ] || kill -9 $$; sleep 1000"), 128 + 9);
    assert_has(&stderr, &["was ended by signal 9 (SIGKILL)"]);
}

#[test]
fn restarts_run_all_ranks_again_until_none_is_left() {
    let fails_twice = "[ $RANK != 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3; echo attempt $TORCHELASTIC_RESTART_COUNT";
    let (stdout, stderr) = run(&mut script("-n 2 --restart 2", fails_twice), 0);
    assert_has(&stdout, &["[0] attempt 2\n", "[1] attempt 2\n"]);
    assert_has(&stderr, &["starting all ranks again, 2 of 2 times"]);
    run(&mut script("-n 2 --restart 1", fails_twice), 3);
}

#[test]
fn signal_after_a_failed_attempt_ends_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    // More than a pipe holds: until it is read, the attempt is not over, though its rank is.
    let fails = format!("echo $$ > {0}.new; mv {0}.new {0}; head -c 100000 /dev/zero; exit 3", pid.display());
    let again = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; ";
    let mut command = script("-n 1 --restart 1", &(again.to_owned() + &fails));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let has_ended =
        || fs::read_to_string(&pid).is_ok_and(|pid| !fs::exists(format!("/proc/{}", pid.trim())).unwrap());
    assert!(wait_until(LIMIT, has_ended), "the rank has not ended");
    send(child.id(), Signal::TERM);
    thread::sleep(Duration::from_millis(200));
    let (_, stderr) = ended(child.wait_with_output().unwrap(), 143, "nccl run");
    assert!(!stderr.contains("starting all ranks again"), "{stderr}");
}

#[test]
fn log_folder_has_a_file_for_each_stream_of_each_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    let options = format!("-n 1 --restart 1 --log-dir {}", logs.display());
    run(&mut script(&options, "echo out $RANK; echo err >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ]"), 0);
    for attempt in ["attempt_0", "attempt_1"] {
        let of_rank = logs.join(attempt).join("0");
        assert_eq!(read(&of_rank.join("stdout.log")), "out 0\n");
        assert_eq!(read(&of_rank.join("stderr.log")), "err\n");
    }
}

#[test]
fn program_that_is_not_there_is_an_error() {
    let (_, stderr) = run(&mut nccl("run -n 2 -- /nonexistent/program"), 1);
    assert_has(&stderr, &["cannot start /nonexistent/program: No such file or directory"]);
    for arguments in ["-n 0 true", "-n 2", "true"] {
        run(&mut nccl(&format!("run {arguments}")), 2);
    }
}

#[test]
fn closed_output_ends_the_ranks() {
    let mut child = nccl("run -n 2 -- yes").stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 8]).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn bench_measures_the_ranks_of_a_launcher_and_one_prints() {
    let (stdout, _) =
        run(nccl("run -n 3 --").arg(NCCL).args(["bench", "all_reduce", "--cpu", "-e", "1K"]), 0);
    assert!(stdout.lines().all(|line| line.starts_with("[0] ")), "{stdout}");
    for rank in 0..3 {
        assert_has(&stdout, &[&format!("#  Rank  {rank} Group  0 Pid")]);
    }
    assert_has(&stdout, &["# Out of bounds values : 0 OK"]);

    let mut command = nccl("run -n 2 --");
    let (_, stderr) = run(command.args([NCCL, "bench", "all_reduce", "--cpu", "--ranks", "4"]), 1);
    assert_has(&stderr, &["error: nccl run started this as rank ", " of 2; --ranks"]);

    // Each would be a job of its own.
    let (_, stderr) = run(bench("all_reduce -e 8").env("WORLD_SIZE", "2"), 1);
    assert_has(&stderr, &["RANK is not set"]);
}

/// Starts ranks that each have a child, and waits until all run. The ranks print a line for SIGUSR1 and SIGTERM.
fn start(mark: &str) -> Child {
    let traps = "trap 'echo user' USR1; trap 'echo end; exit 5' TERM; sleep 1000 & while :; do wait; done";
    let mut command = script("-n 3", traps);
    let child = command.env(MARK, mark).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let is_started = || marked(mark).iter().filter(|(_, line)| line.starts_with("sleep")).count() == 3;
    assert!(wait_until(LIMIT, is_started), "{:?}", marked(mark));
    child
}

fn mark(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[test]
fn signals_reach_every_rank_once() {
    let mark = mark("signals");
    let mut child = start(&mark);
    let mut lines = lines(&mut child);
    let mut next = || {
        let mut lines: Vec<String> = lines.by_ref().take(3).collect();
        lines.sort();
        lines
    };
    send(child.id(), Signal::USR1);
    assert_eq!(next(), ["[0] user", "[1] user", "[2] user"]);
    send(child.id(), Signal::TERM);
    assert_eq!(next(), ["[0] end", "[1] end", "[2] end"]);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(marked(&mark), [], "the children of the ranks have no reason to live");
}

/// Kills one of the processes, chosen by `pick`, and checks that no other remains.
fn kill_one(mark: &str, pick: impl Fn(&[(u32, String)]) -> u32) {
    let mut child = start(mark);
    let victim = pick(&marked(mark));
    send(victim, Signal::KILL);
    let is_over = || marked(mark).is_empty();
    assert!(wait_until(LIMIT, is_over), "{victim} was killed, {:?} remain", marked(mark));
    let status = child.wait().unwrap();
    assert!(!status.success() || status.signal().is_some(), "{status}");
}

/// Returns the process whose command line starts so and that was started first or last.
fn supervisor_or_front(processes: &[(u32, String)], index: usize) -> u32 {
    let mut own: Vec<u32> =
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
        let mut command = script("-n 4 --restart 1", "sleep 1000 & wait");
        command.env(MARK, &mark).stdout(Stdio::null()).stderr(Stdio::null());
        let child = Process(command.spawn().unwrap());
        thread::sleep(Duration::from_micros(next(60_000) as u64));
        let processes = marked(&mark);
        let victim = processes.get(next(processes.len().max(1))).map_or(child.0.id(), |(pid, _)| *pid);
        let _ = kill_process(Pid::from_raw(victim as i32).unwrap(), Signal::KILL);
        if victim != child.0.id() {
            // The ranks may have been started again, or a child of one was killed.
            thread::sleep(Duration::from_millis(50));
            send(child.0.id(), Signal::TERM);
        }
        let is_over = || marked(&mark).is_empty();
        assert!(
            wait_until(LIMIT, is_over),
            "round {round}: {victim} of {processes:?} was killed, {:?} remain",
            marked(&mark)
        );
    }
    assert_eq!(files(), before);
}

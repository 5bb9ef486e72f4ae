//! `nccl run`: the ranks' environment, their exit, and that no process remains.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use libnccl_test_support::random_inputs::Random;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{
    LIMIT, MARK, NCCL, Process, assert_has, ended, lines, marked, nccl, send, terminal, wait_until,
    within_limit,
};
use crate::snapshot::Session;

/// Returns `nccl run` with these options and a script for its ranks.
fn script(options: &str, script: &str) -> Command {
    let mut command = nccl(&format!("run {options} -- sh -c"));
    command.arg(script);
    command
}

#[test]
fn ranks_print_and_fail() {
    Session::new().replay("run", Session::shell);
}

fn mark(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Sends SIGTERM to each process of a job, as systemd and `scancel` do, and to the ranks first.
#[test]
fn signal_to_all_processes_starts_no_rank_again() {
    let mark = mark("all");
    let mut command = script("-n 3 --restart 5", "exec sleep 1000");
    let child = command.env(MARK, &mark).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let of = |start: &str| {
        let found = marked(&mark).into_iter().filter(|(_, line)| line.starts_with(start));
        found.map(|(pid, _)| pid).collect::<Vec<_>>()
    };
    assert!(wait_until(LIMIT, || of("sleep").len() == 3), "{:?}", marked(&mark));
    let terminate = |processes: Vec<u32>| {
        for pid in processes {
            // It may have exited with another one.
            let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::TERM);
        }
    };
    let others = of(NCCL);
    terminate(of("sleep"));
    // On a busy machine.
    thread::sleep(Duration::from_millis(200));
    terminate(others);
    let (_, stderr) = ended(child.wait_with_output().unwrap(), 143, "nccl run");
    assert!(!stderr.contains("starting all ranks again"), "{stderr}");
    assert_eq!(marked(&mark), []);
}

/// SIGTERM to each process of a job while the ranks are exiting; and SIGHUP twice, which the kernel and the shell send when a terminal
/// is closed.
#[test]
fn signal_to_all_processes_leaves_the_ranks_their_time() {
    for (name, signal, status) in [("TERM", Signal::TERM, 143), ("HUP", Signal::HUP, 129)] {
        let mark = mark(name);
        let slow =
            format!("trap 'sleep 0.5; echo saved; exit 0' {name}; echo ready; while :; do sleep 0.1; done");
        let mut command = script("-n 1", &slow);
        command.env(MARK, &mark).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut printed = lines(&mut child);
        assert_eq!(printed.next().unwrap(), "[0] ready");
        if signal == Signal::TERM {
            let all = marked(&mark).into_iter().filter(|(_, line)| line.contains("nccl run"));
            all.for_each(|(pid, _)| send(pid, signal));
        } else {
            send(child.id(), signal);
            thread::sleep(Duration::from_millis(50));
            send(child.id(), signal);
        }
        assert_eq!(printed.next().as_deref(), Some("[0] saved"));
        assert_eq!(child.wait().unwrap().code(), Some(status));
    }
}

#[test]
fn process_that_the_tool_did_not_start_outlives_it() {
    // Children of a shell become children of the program that it executes.
    let sidecar = |rest: &str| {
        let mark = mark("sidecar");
        let line = format!("{MARK}={mark} sleep 1234 & exec '{NCCL}' run -n 1 -- {rest}");
        let child = Command::new("sh").args(["-c", &line]).stderr(Stdio::null()).spawn().unwrap();
        (mark, child)
    };
    let (mark_of, mut child) = sidecar("true");
    assert!(child.wait().unwrap().success());
    let left = marked(&mark_of);
    left.iter().for_each(|(pid, _)| send(*pid, Signal::KILL));
    assert_eq!(left.len(), 1, "{left:?}");

    let (mark_of, mut child) =
        sidecar(&format!("env {MARK}={} sh -c 'sleep 1000 & wait'", mark("rank-beside")));
    let of_rank = mark("rank-beside");
    assert!(wait_until(LIMIT, || marked(&of_rank).len() == 2), "{:?}", marked(&of_rank));
    let supervisor = parent(marked(&of_rank).iter().find(|(_, line)| line.starts_with("sh ")).unwrap().0);
    send(supervisor, Signal::KILL);
    assert_eq!(child.wait().unwrap().code(), Some(137));
    let left = marked(&mark_of);
    left.iter().for_each(|(pid, _)| send(*pid, Signal::KILL));
    assert_eq!((left.len(), marked(&of_rank)), (1, vec![]), "{left:?}");
}

/// Returns a field of `/proc/PID/stat` after the name.
fn stat(pid: u32, field: usize) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().nth(field).unwrap_or_default().into()
}

fn parent(pid: u32) -> u32 {
    stat(pid, 1).parse().unwrap()
}

/// A shell with job control on a separate terminal.
struct Shell {
    screen: File,
    _process: Process,
}

impl Shell {
    fn new(mark: &str, commands: &str) -> Self {
        let (screen, other) = terminal();
        let other = || other.try_clone().unwrap();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "sh", "-c", &format!("set -m; stty -echo; {commands}")]);
        command.env("MARK_OF_RANKS", mark).env("TERM", "xterm").env_remove("NO_COLOR");
        let process = Process(command.stdin(other()).stdout(other()).stderr(other()).spawn().unwrap());
        Self { screen, _process: process }
    }

    fn type_in(&mut self, text: &str) {
        self.screen.write_all(text.as_bytes()).unwrap();
    }

    /// Returns the output until a text has appeared this many times.
    #[track_caller]
    fn read_until(&mut self, end: &str, times: usize) -> String {
        let mut screen = self.screen.try_clone().unwrap();
        let expected = end.to_owned();
        within_limit(move || {
            let mut shown = String::new();
            while shown.matches(&expected).count() < times {
                let mut buffer = [0; 1000];
                let count = screen.read(&mut buffer).unwrap_or_default();
                assert_ne!(count, 0, "{expected:?} does not appear after {shown:?}");
                shown += &String::from_utf8_lossy(&buffer[..count]);
            }
            shown
        })
    }
}

/// Returns `nccl run` in the shell, with ranks that print a line, wait for a file, and print another one.
fn job_in_shell(mark: &str, file: &str) -> String {
    format!(
        "{MARK}={mark} '{NCCL}' run -n 2 -- sh -c 'echo begun; until [ -e {file} ]; do sleep 0.1; done; echo done'"
    )
}

/// Returns whether the front and all ranks are stopped, or all are running.
fn all_are(mark: &str, are_stopped: bool) -> bool {
    let processes = marked(mark);
    let front = processes.iter().filter(|(_, line)| line.contains("nccl run")).map(|(pid, _)| *pid).min();
    let others = processes.iter().filter(|(pid, line)| Some(*pid) == front || !line.contains("nccl run"));
    // A shell that waits for a child of vfork is in the state D.
    let states: Vec<_> = others.map(|(pid, _)| stat(*pid, 0)).collect();
    states.len() >= 3 && states.iter().all(|state| (state == "T") == are_stopped || state == "D")
}

#[test]
fn stop_key_stops_the_ranks_and_fg_lets_them_go_on() {
    let (directory, mark) = (tempfile::tempdir().unwrap(), mark("stop-key"));
    let file = directory.path().join("file");
    let job = job_in_shell(&mark, file.to_str().unwrap());
    let mut shell = Shell::new(&mark, &format!("{job}; read line; fg; echo end $?; read line"));
    shell.read_until("begun", 2);
    shell.type_in("\x1a");
    assert!(wait_until(LIMIT, || all_are(&mark, true)), "{:?} are not stopped", marked(&mark));
    shell.type_in("\n");
    assert!(wait_until(LIMIT, || all_are(&mark, false)), "{:?} do not go on", marked(&mark));
    File::create(&file).unwrap();
    let shown = shell.read_until("end 0", 1);
    assert_eq!(shown.matches("\x1b[0m done").count(), 2, "{shown}");
}

#[test]
fn front_that_is_stopped_alone_stops_the_ranks() {
    let (directory, mark) = (tempfile::tempdir().unwrap(), mark("stop"));
    let file = directory.path().join("file");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", file.display());
    let child = script("-n 2", &wait).env(MARK, &mark).spawn().unwrap();
    assert!(wait_until(LIMIT, || all_are(&mark, false)), "{:?} do not run", marked(&mark));
    for signal in [Signal::STOP, Signal::TSTP] {
        // The processes of an orphaned process group ignore SIGTSTP, and then so do the ranks.
        send(child.id(), signal);
        if wait_until(Duration::from_secs(1), || stat(child.id(), 0) == "T") || signal == Signal::STOP {
            assert!(wait_until(LIMIT, || all_are(&mark, true)), "{:?} are not stopped", marked(&mark));
        }
        send(child.id(), Signal::CONT);
        assert!(wait_until(LIMIT, || all_are(&mark, false)), "{:?} do not go on", marked(&mark));
    }
    File::create(&file).unwrap();
    assert!(Process(child).0.wait().unwrap().success());
}

#[test]
fn output_on_a_terminal_has_colors_also_with_tostop() {
    let mut shell =
        Shell::new("", &format!("stty tostop; '{NCCL}' run -n 1 -- echo hi; echo end; read line"));
    let shown = shell.read_until("end", 1);
    assert_has(&shown, &["\x1b[36m[0]\x1b[0m hi"]);
}

#[test]
fn background_job_is_stopped_at_its_output_with_tostop() {
    let (directory, mark) = (tempfile::tempdir().unwrap(), mark("tostop"));
    let file = directory.path().join("file");
    let job = job_in_shell(&mark, file.to_str().unwrap());
    let mut shell = Shell::new(&mark, &format!("stty tostop; {job} & read line; fg; echo end $?; read line"));
    assert!(wait_until(LIMIT, || !marked(&mark).is_empty() && all_are(&mark, true)), "{:?}", marked(&mark));
    shell.type_in("\n");
    shell.read_until("begun", 2);
    assert!(wait_until(LIMIT, || all_are(&mark, false)), "{:?} do not go on", marked(&mark));
    File::create(&file).unwrap();
    shell.read_until("end 0", 1);
}

/// Kills a process at a random time, including between two attempts. No process, file or socket of the run must remain. Repeated
/// `LIBNCCL_TEST_KILLS` times, by default 10.
#[test]
fn random_kills_leave_nothing() {
    let rounds =
        std::env::var("LIBNCCL_TEST_KILLS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(10);
    let mut random = Random(1);
    let files = || fs::read_dir("/dev/shm").map_or(0, |entries| entries.count());
    let before = files();
    for round in 0..rounds {
        let mark = mark(&format!("random-{round}"));
        let fails = round % 3 == 2;
        let (options, job, time) = match fails {
            true => ("-n 2 --restart 1000000", "exit 1", 400_000),
            false => ("-n 4 --restart 1", "sleep 1000 & wait", 60_000),
        };
        let mut command = script(options, job);
        command.env(MARK, &mark).stdout(Stdio::null()).stderr(Stdio::null());
        let child = Process(command.spawn().unwrap());
        thread::sleep(Duration::from_micros(random.below(time) as u64));
        let mut processes = marked(&mark);
        processes.retain(|(pid, _)| !fails || *pid == child.0.id());
        let victim =
            processes.get(random.below(processes.len().max(1))).map_or(child.0.id(), |(pid, _)| *pid);
        let _ = kill_process(Pid::from_raw(victim as i32).unwrap(), Signal::KILL);
        if victim != child.0.id() {
            // The ranks may have been restarted, or a child of one was killed.
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
    // Other programs create files too.
    assert!(wait_until(LIMIT, || files() <= before), "{} files in /dev/shm, {before} before", files());
}

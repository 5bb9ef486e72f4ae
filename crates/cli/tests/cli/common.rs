//! Helpers for several test modules.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};

/// The program.
pub(crate) const NCCL: &str = env!("CARGO_BIN_EXE_nccl");

/// The time limit for an event on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The environment variable by which a test recognizes its processes.
pub(crate) const MARK: &str = "LIBNCCL_TEST_MARK";

/// Restores the default action of signals in child processes, because this process may ignore them under `nohup` or in the background
/// of a script. A signal that is handled here has the default action in a new program.
fn handle_ignored_signals() {
    static IGNORED: Once = Once::new();
    IGNORED.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        for signal in [SIGHUP, SIGINT, SIGQUIT].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 1)
        {
            signal_hook::flag::register(signal, Arc::default()).unwrap();
        }
    });
}

/// Returns a command with the default actions of signals, and without a named library.
pub(crate) fn command(program: &str) -> Command {
    handle_ignored_signals();
    let mut command = Command::new(program);
    command.env_remove("LIBNCCL_PATH");
    command
}

/// Returns the program with these arguments, separated by spaces.
pub(crate) fn nccl(arguments: &str) -> Command {
    let mut command = command(NCCL);
    command.args(arguments.split_whitespace());
    command
}

/// Returns `nccl bench` on the CPU backend.
pub(crate) fn bench(arguments: &str) -> Command {
    nccl(&format!("bench {arguments} --cpu"))
}

/// Returns a command that runs one of these ignored tests as a rank.
pub(crate) fn rank_command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
}

/// Runs a command, which must exit with this status. Returns stdout and stderr.
#[track_caller]
pub(crate) fn run(command: &mut Command, status: i32) -> (String, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    ended(output, status, &format!("{command:?}"))
}

/// Returns the stdout and stderr of a command, which must have exited with this status.
#[track_caller]
pub(crate) fn ended(output: Output, status: i32, command: &str) -> (String, String) {
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    assert_eq!(output.status.code(), Some(status), "{command}: {}\n{stdout}{stderr}", output.status);
    (stdout, stderr)
}

/// Expects each of these parts in a text.
#[track_caller]
pub(crate) fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// Expects no control characters except newlines and tabs.
#[track_caller]
pub(crate) fn assert_visible(text: &str) {
    let is_visible = |character: char| !character.is_control() || matches!(character, '\n' | '\t');
    assert!(text.chars().all(is_visible), "{text:?}");
}

#[track_caller]
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the elements of a list.
#[track_caller]
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

#[track_caller]
pub(crate) fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Returns the lines of a process's stdout, which is piped.
pub(crate) fn lines(child: &mut Child) -> impl Iterator<Item = String> + Send + use<> {
    BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok)
}

/// A process, which is killed when it is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a process id"), signal).expect("a process that runs");
}

/// Returns the running processes with this mark, and their command lines.
pub(crate) fn marked(mark: &str) -> Vec<(u32, String)> {
    let expected = format!("{MARK}={mark}");
    let processes = fs::read_dir("/proc").expect("/proc").filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        // The environment of an exited but unreaped process is empty.
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|variable| variable == expected.as_bytes()).then_some(())?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    processes.collect()
}

/// Returns whether a condition becomes true within this time.
pub(crate) fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Returns the result of `act`; fails if that takes too long.
#[track_caller]
pub(crate) fn within_limit<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(act()));
    receiver.recv_timeout(LIMIT).expect("a result within the limit")
}

/// Builds a library in a directory: the CPU backend with some functions replaced by a C source.
pub(crate) fn changed_library(directory: &Path, source: &str) -> PathBuf {
    let original = directory.join("libnccl.so.2");
    fs::copy(libnccl_test_support::shared_object("nccl_cpu"), &original)
        .expect("the shared object can be copied");
    let file = directory.join("changed.c");
    fs::write(&file, format!("#include <nccl.h>\n#include <stdio.h>\n{source}"))
        .expect("a file in the temporary directory");
    let headers = repository().join("vendor-headers");
    let library = directory.join("libchanged.so");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).args([&file, &original]);
    command.arg("-I").arg(&headers).arg("-I").arg(headers.join("stubs/cuda"));
    command.arg(format!("-Wl,-rpath,{}", directory.display()));
    run(&mut command, 0);
    library
}

/// Opens a terminal, whose other end returns the output.
pub(crate) fn terminal() -> (File, File) {
    let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&own).and_then(|()| unlockpt(&own)).expect("it is ours");
    let name = ptsname(&own, Vec::new()).expect("a name").into_string().expect("text");
    let other = File::options().read(true).write(true).open(name).expect("it exists");
    (own.into(), other)
}

/// Interrupts a command when its progress bar shows this text. Returns stdout and stderr.
pub(crate) fn interrupted(mut command: Command, shown: &str) -> (String, String) {
    let (mut screen, stderr) = terminal();
    command.env("TERM", "xterm").stderr(stderr).stdout(Stdio::piped());
    let child = command.spawn().expect("the program starts");
    let name = format!("{command:?}");
    drop(command);
    let mut drawn = vec![];
    let mut read_until = |text: &str| {
        while !String::from_utf8_lossy(&drawn).contains(text) {
            let mut part = [0; 1024];
            match screen.read(&mut part) {
                Ok(length) if length > 0 => drawn.extend_from_slice(&part[..length]),
                _ => break,
            }
        }
    };
    read_until(shown);
    send(child.id(), Signal::INT);
    let (stdout, _) = ended(child.wait_with_output().expect("it ends"), 130, &name);
    read_until("there is no such text");
    (stdout, String::from_utf8_lossy(&drawn).into_owned())
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("this package lies in crates")
}

/// Tries a measurement up to five times: other load on the machine may disturb it.
pub(crate) fn undisturbed(attempt: impl Fn()) {
    let is_done = (1..5).any(|_| catch_unwind(AssertUnwindSafe(&attempt)).is_ok());
    if !is_done {
        attempt();
    }
}

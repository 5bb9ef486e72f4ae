//! The lines of `NCCL_DEBUG`.
//!
//! The environment is read once per process, so each case runs in a separate process.

use std::collections::HashSet;
use std::ffi::c_void;
use std::fs;
use std::process::Command;
use std::ptr;
use std::thread;

use crate::common::processes::{self, RankProcess};
use crate::common::{ARGUMENT, Comm, I32, OK, SUM, in_group, init_with, split, unique_id};
use libnccl::sys::{ncclConfig_t, ncclEncryptionConfig_t};
use tempfile::TempDir;

const THREADS: usize = 4;
const ROUNDS: usize = 100;

rank_tasks!(log);

/// Makes the calls that the argument names, between two lines.
fn log(process: &RankProcess) {
    let calls = process.arguments[0].as_str();
    let comm = (calls == "calls").then(|| process.join());
    println!("\n<<<");
    match calls {
        "both" => {
            assert_eq!(nccl!(ncclSetEncryption(&ncclEncryptionConfig_t::initializer())), OK);
            warn();
        }
        "threads" => thread::scope(|scope| {
            (0..THREADS).for_each(|_| drop(scope.spawn(|| (0..ROUNDS).for_each(|_| warn()))));
        }),
        "calls" => log_calls(comm.unwrap()),
        "networks" => log_networks(),
        "lifecycle" => log_lifecycle(),
        _ => {
            let make = || init_with(unique_id(), 1, 0, |_| ()).1.destroy();
            make();
            make();
            // SAFETY: no other thread of this process uses the environment.
            unsafe { std::env::remove_var("NCCL_DEBUG") };
            libnccl_cpu::ncclResetDebugInit();
            make();
        }
    }
    println!(">>>");
}

fn warn() {
    assert_eq!(nccl!(ncclGetVersion(ptr::null_mut())), ARGUMENT);
}

fn log_calls(Comm(comm): Comm) {
    let (mut element, stream) = (1, ptr::without_provenance_mut(0x5_7000));
    let place: *mut c_void = (&raw mut element).cast();
    println!("the handle is {comm:p}.");
    println!("the buffer is {place:p}.");
    assert_eq!(nccl!(ncclAllReduce(place, place, 1, I32, SUM, comm, stream)), OK);
    let code = in_group(|| {
        assert_eq!(nccl!(ncclSend(place, 1, I32, 0, comm, stream)), OK);
        assert_eq!(nccl!(ncclRecv(place, 1, I32, 0, comm, stream)), OK);
    });
    assert_eq!(code, OK);
}

/// Creates a communicator with a network, and others without one, of which the last has no ranks.
fn log_networks() {
    let (_, first) = init_with(unique_id(), 1, 0, |config| config.netName = c"IB".as_ptr());
    let (mut config, mut child) = (ncclConfig_t::initializer(), ptr::null_mut());
    assert_eq!(nccl!(ncclCommSplit(first.0, 0, 0, &mut child, &mut config)), OK);
    let (_, other) = init_with(unique_id(), 1, 0, |_| ());
    assert_eq!(split(first.0, -1, 0), Ok(Comm(ptr::null_mut())));
    [first, Comm(child), other].into_iter().for_each(Comm::destroy);
}

fn log_lifecycle() {
    let (_, comm) = init_with(unique_id(), 1, 0, |_| ());
    let (mut config, mut child) = (ncclConfig_t::initializer(), ptr::null_mut());
    config.commName = c"the child".as_ptr();
    assert_eq!(nccl!(ncclCommSplit(comm.0, 0, 0, &mut child, &mut config)), OK);
    Comm(child).destroy();
    assert_eq!(nccl!(ncclCommAbort(comm.0)), OK);
}

/// Makes calls in a process with this environment, and returns its output and its process id.
fn run(calls: &str, environment: &[(&str, &str)]) -> (String, u32) {
    let mut command = processes::command(&format!("log {calls}"), &unique_id(), 1, &[0]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("NCCL_")) {
        command.env_remove(name);
    }
    let child = command.envs(environment.iter().copied()).spawn().unwrap();
    let process = child.id();
    let text = processes::finish(child);
    (text.split_once("<<<\n").unwrap().1.split_once(">>>\n").unwrap().0.to_owned(), process)
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().split('.').next().unwrap().to_owned()
}

/// Replaces host and process id by names, and other numbers by `#`: the time, the thread, the source line.
fn shape(text: &str, process: u32) -> String {
    let named = text.replace(&format!("{}:{process}:", host()), "HOST:PROCESS:");
    let mut shape = String::new();
    for character in named.chars() {
        match character {
            '0'..='9' if shape.ends_with('#') => {}
            '0'..='9' => shape.push('#'),
            _ => shape.push(character),
        }
    }
    shape
}

fn shape_of(task: &str, environment: &[(&str, &str)]) -> String {
    let (text, process) = run(task, environment);
    shape(&text, process)
}

const WARNING: &str =
    "\n[#-#-# #:#:#] HOST:PROCESS:# [#] functions/guard.rs:# NCCL WARN the pointer to the result is NULL\n";
const INFORMATION: &str =
    "HOST:PROCESS:# [#] NCCL INFO Encryption: none, as ranks connect through Unix sockets\n";

#[test]
fn call_lines_show_the_arguments() {
    let (text, _) = run("calls", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "COLL,P2P")]);
    let after = |words| text.split_once(words).unwrap().1.split_once('.').unwrap().0;
    let (handle, buffer) = (after("the handle is "), after("the buffer is "));
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(" NCCL INFO ")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    let calls = [("AllReduce", buffer, buffer), ("Send", buffer, "0x0"), ("Recv", "0x0", buffer)];
    for (line, (name, send, recv)) in lines.iter().zip(calls) {
        assert!(line.contains(&format!(" NCCL INFO {name}: opCount ")), "{line}");
        assert!(line.contains(&format!(" sendbuff {send} recvbuff {recv} ")), "{line}");
        assert!(line.ends_with(&format!(" comm {handle} [nranks=1] stream 0x57000")), "{line}");
    }
}

#[test]
fn version_is_logged_once_unless_logging_is_off() {
    let version = format!("NCCL version {}+cpu{}", libnccl::Version::HEADER, env!("CARGO_PKG_VERSION"));
    let with =
        |level, subsystems| run("version", &[("NCCL_DEBUG", level), ("NCCL_DEBUG_SUBSYS", subsystems)]).0;
    for level in ["VERSION", "WARN"] {
        assert_eq!(with(level, "COLL"), format!("{version}\n"), "{level}");
    }
    let information = with("INFO", "COLL");
    assert!(information.ends_with(&format!(" NCCL INFO {version}\n")), "{information}");
    assert_eq!(information.lines().count(), 1, "{information}");
    let information = with("INFO", "ALL");
    assert_eq!(information.matches(&version).count(), 1, "{information}");
    assert_eq!(information.matches("Init COMPLETE").count(), 2, "{information}");
    assert_eq!([with("", "ALL"), with("INFO", "^ALL")], ["", ""]);
}

#[test]
fn level_and_subsystems_select_lines_in_nccl_format() {
    let both = format!("{INFORMATION}{WARNING}");
    for (level, subsystems, expected) in [
        (
            "INFO",
            &["", "bootstrap", " COLL , Bootstrap,", "^INIT", "all,INIT", "COLL,NOPE", "INIT,^COLL"][..],
            &*both,
        ),
        ("INFO", &["INIT", "^BOOTSTRAP", "^ALLOC_HOST,RAS,BOOTSTRAP,REG", "DESTROY,PROFILE"], WARNING),
        ("WARN", &[""], WARNING),
        (" warn", &[""], WARNING),
        ("ATTN", &[""], WARNING),
        ("INFO", &["^ALL"], ""),
        ("", &["", "ALL"], ""),
        ("VERSION", &[""], ""),
        ("WARNING", &[""], ""),
        ("2", &[""], ""),
    ] {
        for subsystems in subsystems {
            // A variable that is set to nothing selects nothing.
            let selected =
                [("NCCL_DEBUG_SUBSYS", *subsystems)].into_iter().filter(|(_, names)| !names.is_empty());
            let environment: Vec<_> = selected.chain([("NCCL_DEBUG", level)]).collect();
            let printed = shape_of("both", &environment);
            assert_eq!(printed, expected, "{level:?} {subsystems:?}");
        }
    }
    // The device is 0 in every line.
    let (text, _) = run("both", &[("NCCL_DEBUG", "INFO")]);
    assert!(text.lines().filter(|line| !line.is_empty()).all(|line| line.contains(" [0] ")), "{text}");
}

#[test]
fn warning_timestamp_is_local_time() {
    for zone in ["ABC-12", "UTC"] {
        let now = || {
            let output = Command::new("date").arg("+%F %T").env("TZ", zone).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
        };
        let begin = now();
        let (text, _) = run("both", &[("NCCL_DEBUG", "WARN"), ("TZ", zone)]);
        let (time, _) = text.strip_prefix("\n[").unwrap().split_once(']').unwrap();
        let times = begin..=now();
        assert!(times.contains(&time.to_owned()), "{zone}: {time} is not in {times:?}");
    }
}

fn file_in(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn debug_file_receives_lines_and_is_truncated() {
    let directory = tempfile::tempdir().unwrap();
    let environment = [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", &file_in(&directory, "%h.%p.%%h%%.log"))];
    let (text, process) = run("both", &environment);
    assert_eq!(text, "");
    let file = file_in(&directory, &format!("{}.{process}.%h%.log", host()));
    assert_eq!(shape(&fs::read_to_string(file).unwrap(), process), WARNING);
    // An old file is truncated.
    let file = file_in(&directory, "old");
    fs::write(&file, "old\n").unwrap();
    let (text, process) = run("both", &[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", &file)]);
    assert_eq!(text, "");
    assert_eq!(shape(&fs::read_to_string(file).unwrap(), process), WARNING);
    // One that cannot be opened is replaced by the standard output.
    for file in ["", "/dev/null/no/directory"] {
        assert_eq!(shape_of("both", &[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", file)]), WARNING, "{file}");
    }
    // Without lines to write, no file is created.
    let file = file_in(&directory, "none");
    run("both", &[("NCCL_DEBUG", "VERSION"), ("NCCL_DEBUG_FILE", &file)]);
    assert!(!fs::exists(file).unwrap());
}

#[test]
fn log_lines_of_threads_do_not_interleave() {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(&directory, "lines");
    let printed = run("threads", &[("NCCL_DEBUG", "WARN")]);
    let (nothing, process) = run("threads", &[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", &file)]);
    assert_eq!(nothing, "");
    for (text, process) in [printed, (fs::read_to_string(file).unwrap(), process)] {
        assert_eq!(shape(&text, process), WARNING.repeat(THREADS * ROUNDS));
        let threads: HashSet<&str> = text.lines().filter_map(|line| line.split(' ').nth(2)).collect();
        assert_eq!(threads.len(), THREADS);
    }
}

#[test]
fn network_lines_match_nccl() {
    let with = |environment: &[(&str, &str)]| {
        let (text, _) = run("networks", environment);
        let networks = text.lines().filter_map(|line| Some(line.split_once(" NCCL INFO Using network ")?.1));
        networks.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(with(&[("NCCL_DEBUG", "INFO")]), ["IB", "Socket", "Socket"]);
    let environment = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "NET"), ("NCCL_NET", "Socket")];
    assert_eq!(with(&environment), ["Socket"; 3]);
}

#[test]
fn log_reports_init_destroy_and_abort() {
    let (text, _) = run("lifecycle", &[("NCCL_DEBUG", "INFO")]);
    let events: Vec<&str> =
        text.lines().filter(|line| line.contains(" NCCL INFO ") && line.contains("nranks")).collect();
    let expected = [
        ("", "- Init START"),
        ("comm 0x10 rank", "- Init COMPLETE"),
        ("comm 0x20 (the child) rank", "- Init COMPLETE"),
        ("comm 0x20", "- Destroy COMPLETE"),
        ("comm 0x10", "- Abort COMPLETE"),
    ];
    assert_eq!(events.len(), expected.len(), "{text}");
    for (line, (comm, ending)) in events.iter().zip(expected) {
        assert!(line.contains(comm) && line.ends_with(ending), "{line}");
        assert!(line.contains(" rank 0 nranks 1 cudaDev 0 commId 0x"), "{line}");
    }
}

//! The lines of `NCCL_DEBUG`.
//!
//! The environment is read once a process, so each case is a process of its own: this test program, told by its
//! environment to be a worker.

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::ptr;
use std::thread;

use common::{ARGUMENT, OK};
use libnccl::sys::ncclEncryptionConfig_t;
use tempfile::TempDir;

const THREADS: usize = 4;
const ROUNDS: usize = 100;

/// What a worker does.
#[test]
fn worker() {
    let Ok(task) = std::env::var("LIBNCCL_TEST_TASK") else { return };
    println!("\n<<<");
    match task.as_str() {
        "both" => {
            let config = ncclEncryptionConfig_t::initializer();
            assert_eq!(nccl!(ncclSetEncryption(&config)), OK);
            assert_eq!(nccl!(ncclGetVersion(ptr::null_mut())), ARGUMENT);
        }
        "threads" => thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        assert_eq!(nccl!(ncclGetVersion(ptr::null_mut())), ARGUMENT);
                    }
                });
            }
        }),
        _ => panic!("{task}"),
    }
    println!(">>>");
}

/// What a worker prints, and its number.
fn run(task: &str, environment: &[(&str, &str)]) -> (String, u32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("NCCL_")) {
        command.env_remove(name);
    }
    let child = command
        .args(["worker", "--exact", "--nocapture", "--test-threads=1"])
        .env("LIBNCCL_TEST_TASK", task)
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let process = child.id();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    (text.split_once("<<<\n").unwrap().1.split_once(">>>\n").unwrap().0.to_owned(), process)
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().split('.').next().unwrap().to_owned()
}

/// Host and process by name, and other numbers as `#`: the time, the thread, the line of the source.
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
    "\n[#-#-# #:#:#] HOST:PROCESS:# [#] abi/mod.rs:# NCCL WARN the pointer to the result is NULL\n";
const INFORMATION: &str = "HOST:PROCESS:# [#] NCCL INFO Encryption: none, as ranks meet at Unix sockets\n";

#[test]
fn nothing_is_printed_unasked() {
    for level in ["", "VERSION", "WARNING", "2"] {
        assert_eq!(run("both", &[("NCCL_DEBUG", level)]).0, "", "{level}");
    }
    assert_eq!(run("both", &[("NCCL_DEBUG_SUBSYS", "ALL")]).0, "");
    assert_eq!(run("both", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "^ALL")]).0, "");
}

#[test]
fn warnings_and_information_have_nccls_shape() {
    let (text, process) = run("both", &[("NCCL_DEBUG", "INFO")]);
    assert_eq!(shape(&text, process), format!("{INFORMATION}{WARNING}"), "{text}");
    // The device is 0 and the lines are this thread's.
    assert!(text.lines().filter(|line| !line.is_empty()).all(|line| line.contains(" [0] ")), "{text}");
    for level in ["WARN", " warn", "ATTN"] {
        assert_eq!(shape_of("both", &[("NCCL_DEBUG", level)]), WARNING, "{level}");
    }
}

#[test]
fn subsystems_are_chosen() {
    let with = |subsystems| shape_of("both", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", subsystems)]);
    assert_eq!(with("bootstrap"), format!("{INFORMATION}{WARNING}"));
    assert_eq!(with("INIT"), WARNING);
    assert_eq!(with("^BOOTSTRAP"), WARNING);
    assert_eq!(with("^INIT"), format!("{INFORMATION}{WARNING}"));
}

#[test]
fn the_time_has_the_format_and_the_lines_that_are_asked_for() {
    let with = |format, levels| {
        shape_of(
            "both",
            &[
                ("NCCL_DEBUG", "INFO"),
                ("NCCL_DEBUG_TIMESTAMP_FORMAT", format),
                ("NCCL_DEBUG_TIMESTAMP_LEVELS", levels),
            ],
        )
    };
    let (bare, time) = (WARNING.replace("[#-#-# #:#:#] ", ""), "[#-#-# #:#:#] ");
    assert_eq!(with("", "ALL"), format!("{INFORMATION}{bare}"));
    assert_eq!(with("[%F %T] ", "INFO"), format!("{time}{INFORMATION}{bare}"));
    // The time is local.
    let zone = [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_TIMESTAMP_FORMAT", "%z "), ("TZ", "ABC-09:30")];
    assert!(run("both", &zone).0.starts_with("\n+0930 "));
}

fn file_in(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn lines_go_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let environment = [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", &file_in(&folder, "%h.%p.log"))];
    let (text, process) = run("both", &environment);
    assert_eq!(text, "");
    let file = file_in(&folder, &format!("{}.{process}.log", host()));
    assert_eq!(shape(&fs::read_to_string(file).unwrap(), process), WARNING);
    // It starts anew.
    let file = file_in(&folder, "old");
    fs::write(&file, "old\n").unwrap();
    let (text, process) = run("both", &[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", &file)]);
    assert_eq!(text, "");
    assert_eq!(shape(&fs::read_to_string(file).unwrap(), process), WARNING);
    // Nobody asks for lines, and nobody gets a file.
    let file = file_in(&folder, "none");
    run("both", &[("NCCL_DEBUG", "VERSION"), ("NCCL_DEBUG_FILE", &file)]);
    assert!(!fs::exists(file).unwrap());
}

#[test]
fn lines_go_to_the_standard_output_without_a_file() {
    for file in ["", "/dev/null/no/folder"] {
        assert_eq!(shape_of("both", &[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", file)]), WARNING, "{file}");
    }
}

#[test]
fn lines_of_threads_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let file = file_in(&folder, "lines");
    let (text, process) = run("threads", &[("NCCL_DEBUG", "WARN")]);
    let (nothing, other_process) = run("threads", &[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", &file)]);
    assert_eq!(nothing, "");
    let written = fs::read_to_string(file).unwrap();
    for (text, process) in [(&text, process), (&written, other_process)] {
        assert_eq!(shape(text, process), WARNING.repeat(THREADS * ROUNDS));
        let threads = text.lines().filter(|line| !line.is_empty()).map(|line| {
            line.split_once(&format!(":{process}:")).unwrap().1.split_once(' ').unwrap().0.to_owned()
        });
        assert_eq!(threads.collect::<std::collections::HashSet<_>>().len(), THREADS);
    }
}

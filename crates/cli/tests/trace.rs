//! `nccl trace`, and the library that it gives a program in NCCL's place, with C programs on the CPU implementation.

mod mistakes;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;

use libnccl::sys::Functions;
use mistakes::{FAULTY, MISTAKES, RANKS};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("this package lies in crates")
}

/// Builds both libraries: Cargo builds no cdylib for tests. Other tests use the same folder. Returns it.
fn built() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cpu-so");
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--quiet", "--package", "libnccl-cpu-so", "--package", "libnccl-trace"]);
        succeed(command.arg("--target-dir").arg(&target).current_dir(repository()));
        target.join("debug")
    });
    &FOLDER
}

fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    let (printed, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{printed}{errors}");
    printed.into_owned()
}

/// Folders with the CPU implementation, the library that records, programs, and recordings.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (library, file, links) in [
            ("libnccl_cpu.so", "cpu/libnccl.so.2", &["cpu/libnccl.so"][..]),
            ("libnccl_trace.so", "trace/libnccl-trace.so", &["trace/libnccl.so.2", "trace/libnccl.so"]),
        ] {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy(built().join(library), &path).unwrap();
            links.iter().for_each(|link| symlink(&path, folder.path().join(link)).unwrap());
        }
        fs::create_dir(folder.path().join("recordings")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles a file of the library's tests to a file of this name.
    fn compile(&self, source: &str, name: &str, options: &[&str]) -> PathBuf {
        let (root, program) = (repository(), self.path(name));
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(root.join("vendor-headers"));
        cc.arg("-I").arg(root.join("vendor-headers/stubs/cuda"));
        cc.arg(root.join("crates/trace/tests/c").join(source)).arg("-o").arg(&program).args(options);
        succeed(cc.arg("-L").arg(self.path("cpu")));
        program
    }

    /// Returns a command that runs a program with its calls recorded.
    fn trace(&self, program: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
        command.args(["trace", "--recorder"]).arg(self.path("trace/libnccl-trace.so"));
        command.arg("--output").arg(self.path("recordings")).arg("--").arg(program);
        command.env("LD_LIBRARY_PATH", self.path("cpu")).env_remove("LIBNCCL_PATH").env_remove("LD_PRELOAD");
        command
    }

    /// Returns the recordings, by the names of their files.
    fn recordings(&self) -> Vec<(String, Value)> {
        let files = fs::read_dir(self.path("recordings")).unwrap().map(|entry| entry.unwrap());
        let read = |entry: fs::DirEntry| {
            let text = fs::read(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), serde_json::from_slice(&text).unwrap())
        };
        let mut recordings: Vec<_> = files.map(read).collect();
        recordings.sort_by(|one, other| one.0.cmp(&other.0));
        recordings
    }
}

#[test]
fn ten_mistakes_of_a_c_program_are_named_with_rank_and_call() {
    let fixture = Fixture::new();
    let program = fixture.compile("mistakes.c", "mistakes", &["-lnccl"]);
    let mut problems = Vec::new();
    for (mistake, kinds, call) in MISTAKES {
        let (recordings, ids) = (fixture.path("recordings"), tempfile::tempdir().unwrap());
        fs::remove_dir_all(&recordings).unwrap();
        fs::create_dir(&recordings).unwrap();
        let start = |rank: usize| -> Child {
            let mut command = fixture.trace(&program);
            command.arg(mistake).arg(ids.path()).env("RANK", rank.to_string());
            // A group's collectives come first, as in NCCL.
            command.env("LIBNCCL_CPU_STRICT", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let ranks: Vec<_> = (0..RANKS).map(start).collect();
        let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
        let is_dead = |rank: usize| mistake == "dead rank" && rank == FAULTY;
        for (rank, output) in outputs.iter().enumerate() {
            assert!(output.status.success() != is_dead(rank), "{mistake}: rank {rank}: {output:?}");
        }
        if let Some(report) = mistakes::unnamed(&recordings, kinds, call) {
            problems.push(format!("{mistake}: {report:#}\n{outputs:#?}"));
        }
    }
    assert!(problems.is_empty(), "{} of 10: {}", problems.len(), problems.join("\n"));
}

/// Checks every field of what `calls.c` leaves.
fn check_calls(fixture: &Fixture, output: &Output) {
    assert!(output.status.success(), "{output:?}");
    let recordings = fixture.recordings();
    let [(file, recording)] = &recordings[..] else { panic!("{recordings:#?}") };
    assert_eq!((file.as_str(), &recording["format"]), ("rank0.json", &json!("libnccl recorder")));
    assert_eq!((&recording["version"], &recording["reason"]), (&json!(1), &json!("exit")));
    assert_eq!(recording["nccl"], "2.32.3");
    let communicators = recording["communicators"].as_array().unwrap();
    assert_eq!(communicators.len(), 4);
    let ids: Vec<_> = communicators.iter().map(|one| one["id"].as_str().unwrap()).collect();
    // The two ranks share one, and each half has its own.
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 3);
    let message = |operation: &str, sent: u64, received: u64, peer: u64| {
        json!({
            "number": 2, "collective": null, "message": 1, "operation": operation, "data_type": "int8", "sent": sent,
            "received": received, "peer": peer, "source": null, "group": 2, "site": null, "stream": 0,
            "completed_ns": null, "state": "completed",
        })
    };
    let collective = |operation: &str,
                      data_type: Option<&str>,
                      root: Option<u64>,
                      group: Option<u64>,
                      state: &str| {
        json!({
            "number": 1, "collective": 1, "message": null, "operation": operation, "data_type": data_type, "sent": 3,
            "received": 3, "peer": root, "source": null, "group": group, "site": null, "stream": 0,
            "completed_ns": null, "state": state,
        })
    };
    let sum = || collective("all_reduce", Some("float"), None, Some(1), "completed");
    let expected = [
        (2, 0, vec![sum(), message("send", 5, 0, 1)]),
        (2, 1, vec![sum(), message("recv", 0, 5, 0)]),
        (1, 0, vec![collective("all_reduce", None, None, None, "failed")]),
        (1, 0, vec![collective("broadcast_in_place", Some("float"), Some(0), None, "completed")]),
    ];
    for (communicator, (size, rank, expected)) in communicators.iter().zip(expected) {
        assert_eq!((&communicator["size"], &communicator["rank"]), (&json!(size), &json!(rank)));
        assert_eq!((&communicator["memory"], &communicator["state"]), (&json!("host"), &json!("ended")));
        assert_eq!(
            (&communicator["capacity"], &communicator["count"]),
            (&json!(1024), &json!(expected.len()))
        );
        let mut records = communicator["records"].as_array().unwrap().clone();
        for record in &mut records {
            let queued = record.as_object_mut().unwrap().remove("queued_ns").unwrap();
            assert!(queued.as_u64().unwrap() > 1_600_000_000_000_000_000, "{queued}");
        }
        assert_eq!(records, expected);
    }
}

#[test]
fn linked_program_is_recorded() {
    let fixture = Fixture::new();
    let program = fixture.compile("calls.c", "linked", &["-lnccl"]);
    check_calls(&fixture, &fixture.trace(&program).output().unwrap());
}

#[test]
fn program_that_loads_nccl_by_name_is_recorded() {
    for name in ["libnccl.so.2", "libnccl.so"] {
        let fixture = Fixture::new();
        let program = fixture.compile("calls.c", "loading", &[&format!("-DLOAD=\"{name}\""), "-ldl"]);
        check_calls(&fixture, &fixture.trace(&program).output().unwrap());
    }
}

#[test]
fn library_in_nccls_place_records_without_being_preloaded() {
    let fixture = Fixture::new();
    let program = fixture.compile("calls.c", "linked", &["-lnccl"]);
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", fixture.path("trace")).env_remove("LD_PRELOAD");
    command.env("LIBNCCL_TRACE_LIBRARY", fixture.path("cpu/libnccl.so.2"));
    command.env("LIBNCCL_RECORDER_FILE", fixture.path("recordings/rank"));
    check_calls(&fixture, &command.output().unwrap());
}

#[test]
fn path_of_another_nccl_is_used_and_a_wrong_one_is_an_error() {
    let fixture = Fixture::new();
    let program = fixture.compile("calls.c", "linked", &["-lnccl"]);
    let mut command = fixture.trace(&program);
    command.env_remove("LD_LIBRARY_PATH").env("LIBNCCL_PATH", fixture.path("cpu/libnccl.so.2"));
    check_calls(&fixture, &command.output().unwrap());
    let output = fixture.trace(&program).env("LIBNCCL_PATH", "/nonexistent").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "error: there is no file /nonexistent; expected an NCCL library\n");
}

#[test]
fn program_without_nccl_leaves_nothing_and_its_exit_status_is_passed_on() {
    let fixture = Fixture::new();
    let output = fixture.trace(Path::new("sh")).args(["-c", "exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(fixture.recordings().is_empty());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("nccl recorder diff ") && error.lines().count() == 1, "{error}");
}

#[test]
fn program_that_is_ended_by_a_signal_leaves_its_recording() {
    let fixture = Fixture::new();
    let program = fixture.compile("calls.c", "linked", &["-lnccl"]);
    let mut child = fixture.trace(&program).arg("wait").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "waiting\n");
    // It is about to call, and then waits for ever.
    std::thread::sleep(std::time::Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    let recordings = fixture.recordings();
    assert_eq!(recordings[0].1["reason"], "signal");
    let communicator = &recordings[0].1["communicators"][0];
    assert_eq!((&communicator["state"], &communicator["count"]), (&json!("in a call"), &json!(1)));
    assert_eq!(
        (&communicator["records"][0]["operation"], &communicator["records"][0]["state"]),
        (&json!("recv"), &json!("called"))
    );
}

#[test]
fn function_that_the_library_lacks_is_an_error_that_names_it() {
    let fixture = Fixture::new();
    fixture.compile("few.c", "few.so", &["-shared", "-fPIC"]);
    let program = fixture.compile("lacking.c", "lacking", &["-lnccl"]);
    let mut command = fixture.trace(&program);
    let printed = succeed(command.env("LIBNCCL_PATH", fixture.path("few.so")));
    let message =
        "5 ncclCommSplit is not in the NCCL library to which libnccl-trace passes calls on\nits own\n";
    assert_eq!(printed, message);
}

#[test]
fn program_that_finds_no_nccl_gets_an_error_with_the_places() {
    let fixture = Fixture::new();
    let program = fixture.compile("calls.c", "linked", &["-lnccl"]);
    let output = fixture.trace(&program).env("LIBNCCL_PATH", &program).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("libnccl-trace: no NCCL library could be loaded"), "{error}");
    assert!(error.contains("ncclCommInitAll: 2, libnccl-trace has found no NCCL library"), "{error}");
    assert!(fixture.recordings().is_empty());
}

#[test]
fn exports_are_the_functions_of_nccl_and_a_mark() {
    let library = built().join("libnccl_trace.so");
    let printed = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let found: BTreeSet<_> = printed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let functions = Functions::NAMES.iter().map(ToString::to_string);
    let of_devices = device_functions();
    let expected: BTreeSet<String> = functions.chain(of_devices).collect();
    let expected: BTreeSet<String> =
        expected.iter().flat_map(|name| [name.clone(), format!("p{name}")]).collect();
    let mut expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
    expected.insert("libnccl_trace");
    let differences: Vec<_> = expected.symmetric_difference(&found).collect();
    assert!(differences.is_empty(), "{differences:?}");
    let dynamic = succeed(Command::new("readelf").args(["-W", "-d"]).arg(&library));
    assert!(dynamic.contains("Library soname: [libnccl.so.2]"), "{dynamic}");
}

/// Returns the names of the functions that `nccl_device_host.h` declares.
fn device_functions() -> BTreeSet<String> {
    let file = repository().join("src/sys/generated/device_functions.rs");
    let text = fs::read_to_string(file).unwrap();
    let name = |line: &str| Some(line.trim().strip_prefix("fn ")?.split_once('(')?.0.to_owned());
    text.lines().filter_map(name).collect()
}

/// Prints what recording adds to an operation of a library that does nothing: docs/hangs.md.
#[test]
#[ignore = "measures; to be run alone, optimised: see docs/hangs.md"]
fn cost_of_an_operation() {
    const CALLS: u32 = 20_000_000;
    let fixture = Fixture::new();
    let library =
        std::env::var_os("LIBNCCL_TEST_TRACE").map_or_else(|| built().join("libnccl_trace.so"), Into::into);
    fixture.compile("few.c", "few.so", &["-shared", "-fPIC", "-O2", "-Wl,-soname,libnccl.so.2"]);
    symlink("few.so", fixture.path("libnccl.so.2")).unwrap();
    let program = fixture.compile("cost.c", "cost", &["-O2", "-lnccl"]);
    for communicators in [1, 8] {
        let run = |is_traced: bool| -> f64 {
            let mut command = Command::new(&program);
            command
                .args([CALLS.to_string(), communicators.to_string()])
                .env("LD_LIBRARY_PATH", fixture.folder.path());
            if is_traced {
                command
                    .env("LD_PRELOAD", &library)
                    .env("LIBNCCL_RECORDER_FILE", fixture.path("recordings/rank"));
                command.env("LIBNCCL_TRACE_LIBRARY", fixture.path("few.so"));
            }
            succeed(&mut command).trim().parse().unwrap()
        };
        let mut rounds: Vec<_> = (0..5).map(|_| (run(false), run(true))).collect();
        rounds.sort_by(|one, other| (one.1 - one.0).total_cmp(&(other.1 - other.0)));
        let (direct, traced) = rounds[2];
        println!(
            "{communicators} communicators: {direct} ns direct, {traced} ns recorded, {:.1} ns more",
            traced - direct
        );
    }
}

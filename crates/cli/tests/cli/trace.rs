//! `nccl trace` and its interposer, with C programs on the CPU backend.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use libnccl::sys::Functions;
use libnccl_test_support::shared_object;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Process, assert_has, json, lines, nccl, read, repository, run, send, wait_until};
use crate::snapshot::Session;

/// Directories with the CPU backend, the library that records, programs, and recordings.
struct Fixture {
    directory: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (library, file, links) in [
            ("nccl_cpu", "cpu/libnccl.so.2", &["cpu/libnccl.so"][..]),
            ("nccl_trace", "trace/libnccl-trace.so", &["trace/libnccl.so.2", "trace/libnccl.so"]),
        ] {
            let path = directory.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy(shared_object(library), &path).unwrap();
            links.iter().for_each(|link| symlink(&path, directory.path().join(link)).unwrap());
        }
        fs::create_dir(directory.path().join("recordings")).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Compiles a source of the library's tests into a file of this name.
    fn compile(&self, source: &str, name: &str, options: &[&str]) -> PathBuf {
        let (root, program) = (repository(), self.path(name));
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(root.join("vendor-headers"));
        cc.arg("-I").arg(root.join("vendor-headers/stubs/cuda"));
        cc.arg(root.join("crates/trace/tests/c").join(source)).arg("-o").arg(&program).args(options);
        run(cc.arg("-L").arg(self.path("cpu")), 0);
        program
    }

    /// Returns a command that runs a program with its calls recorded.
    fn trace(&self, program: &Path) -> Command {
        self.trace_into(&self.path("recordings"), program)
    }

    fn trace_into(&self, directory: &Path, program: &Path) -> Command {
        let mut command = nccl("trace --recorder");
        command.arg(self.path("trace/libnccl-trace.so"));
        command.arg("--output").arg(directory).arg("--").arg(program);
        command.env("LD_LIBRARY_PATH", self.path("cpu")).env_remove("LD_PRELOAD");
        command
    }

    /// Returns the recordings, by the names of their files.
    fn recordings(&self) -> Vec<(String, Value)> {
        let files = fs::read_dir(self.path("recordings")).unwrap().map(|entry| entry.unwrap());
        let recording =
            |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), json(&read(&entry.path())));
        let mut recordings: Vec<_> = files.map(recording).collect();
        recordings.sort_by(|one, other| one.0.cmp(&other.0));
        recordings
    }
}

/// The mistakes of the last of three ranks, the expected kinds of findings, and the named call.
const MISTAKES: [(&str, &[&str], &str); 10] = [
    ("order", &["other_order", "other_operation"], "broadcast"),
    ("count", &["other_size"], "allreduce"),
    ("type", &["other_type"], "allreduce"),
    ("root", &["other_root"], "broadcast"),
    ("missing call", &["missing_call"], "allreduce"),
    ("extra call", &["extra_call"], "allreduce"),
    ("other communicator", &["circular_wait"], "allreduce"),
    ("group against none", &["circular_wait", "missing_call"], "allreduce"),
    ("message", &["other_message", "unmatched_message"], "recv"),
    ("dead rank", &["missing_rank"], "allreduce"),
];

#[test]
fn ten_mistakes_of_a_c_program_are_named_with_rank_and_call() {
    let fixture = Fixture::new();
    let program = fixture.compile("mistakes.c", "mistakes", &["-lnccl"]);
    let problem = |(mistake, kinds, call): &(&str, &[&str], &str)| {
        let [directory, ids] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let start = |rank: usize| {
            let mut command = fixture.trace_into(directory.path(), &program);
            command.arg(mistake).arg(ids.path()).env("RANK", rank.to_string());
            // A group's collectives come first, as in NCCL.
            command.env("LIBNCCL_CPU_STRICT", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let outputs = [0, 1, 2].map(start).map(|rank| rank.wait_with_output().unwrap());
        let is_dead = outputs.each_ref().map(|output| !output.status.success());
        let expected = [false, false, *mistake == "dead rank"];
        let report = nccl("recorder diff --json").arg(directory.path()).output().unwrap().stdout;
        let report: Value = serde_json::from_slice(&report).unwrap_or_default();
        let finding = &report["findings"][0];
        let is_named = kinds.contains(&finding["kind"].as_str().unwrap_or_default())
            && finding["ranks"].as_array().is_some_and(|ranks| ranks.contains(&2.into()))
            && finding.to_string().to_lowercase().contains(call);
        (!is_named || is_dead != expected).then(|| format!("{mistake}: {report:#}\n{outputs:#?}"))
    };
    for some in MISTAKES.chunks(5) {
        thread::scope(|scope| {
            let checks: Vec<_> = some.iter().map(|mistake| scope.spawn(|| problem(mistake))).collect();
            let problems: Vec<_> = checks.into_iter().filter_map(|check| check.join().unwrap()).collect();
            assert!(problems.is_empty(), "{}", problems.join("\n"));
        });
    }
}

/// Checks every field of the recordings of `calls.c`.
fn check_calls(fixture: &Fixture, output: &Output) {
    assert!(output.status.success(), "{output:?}");
    let mut recordings = fixture.recordings();
    let [(file, recording)] = &mut recordings[..] else { panic!("{recordings:#?}") };
    assert_eq!(file, "rank0.json");
    let mut ids: Vec<Value> = vec![];
    for communicator in recording["communicators"].as_array_mut().unwrap() {
        // The two ranks share one communicator, and each half has its own.
        let id = communicator["id"].take();
        let known = ids.iter().position(|other| *other == id);
        communicator["id"] = json!(known.unwrap_or(ids.len()));
        ids.push(id);
        for record in communicator["records"].as_array_mut().unwrap() {
            let queued = record["queued_ns"].take();
            assert!(queued.as_u64().unwrap() > 1_600_000_000_000_000_000, "{queued}");
        }
    }
    let library = fixture.path("cpu/libnccl.so.2").canonicalize().unwrap();
    let file = &recording["library"];
    assert_eq!(Path::new(file["path"].as_str().unwrap()).canonicalize().unwrap(), library);
    assert_eq!(file["size"], library.metadata().unwrap().len());
    assert_eq!(file["build_id"].is_null(), file["hash"].is_string(), "{file}");
    for varying in ["host", "library", "process", "time_ns"] {
        drop(recording.as_object_mut().unwrap().remove(varying));
    }
    let mut session = Session::new();
    session.add("# rank0.json", &format!("{recording:#}"));
    session.check("trace_calls");
}

/// A program that is linked with NCCL, including with a preloaded NCCL, as for `nccl run --cpu`, or with another named NCCL; and a
/// program that loads NCCL by name.
#[test]
fn program_is_recorded_however_it_finds_nccl() {
    for name in ["libnccl.so.2", "libnccl.so"] {
        let fixture = Fixture::new();
        let program = fixture.compile("calls.c", "loading", &[&format!("-DLOAD=\"{name}\""), "-ldl"]);
        check_calls(&fixture, &fixture.trace(&program).output().unwrap());
    }
    for variable in [None, Some("LD_PRELOAD"), Some("LIBNCCL_PATH")] {
        let fixture = Fixture::new();
        let program = fixture.compile("calls.c", "linked", &["-lnccl"]);
        let mut command = fixture.trace(&program);
        if variable == Some("LIBNCCL_PATH") {
            command.env_remove("LD_LIBRARY_PATH");
        }
        command.envs(variable.map(|name| (name, fixture.path("cpu/libnccl.so.2"))));
        check_calls(&fixture, &command.output().unwrap());
    }
    let fixture = Fixture::new();
    let program = fixture.compile("calls.c", "linked", &["-lnccl"]);
    // Replaces NCCL without being preloaded.
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", fixture.path("trace")).env_remove("LD_PRELOAD");
    command.env("LIBNCCL_TRACE_LIBRARY", fixture.path("cpu/libnccl.so.2"));
    command.env("LIBNCCL_RECORDER_FILE", fixture.path("recordings/rank"));
    check_calls(&fixture, &command.output().unwrap());
}

/// In the commands, `sh compile SOURCE FILE OPTIONS` compiles a source of the library's tests.
#[test]
fn program_without_nccl_or_a_function_gets_an_error() {
    let mut session = Session::new();
    let (root, trace) = (repository(), shared_object("nccl_trace"));
    session.redact("[TRACE]", trace.to_str().unwrap());
    let compile = "source=$1 file=$2; shift 2; cc -Wall -Wextra -Werror -I \"$ROOT/vendor-headers\" \
        -I \"$ROOT/vendor-headers/stubs/cuda\" \"$ROOT/crates/trace/tests/c/$source\" -o $file \"$@\" -L cpu";
    session.write("compile", compile);
    let variables = [("ROOT", root.as_path()), ("TRACE", &trace)];
    session.replay("trace_programs", |session, line| session.shell_with(line, &variables));
}

#[test]
fn program_in_a_call_is_compared_on_request_and_leaves_its_recording_when_a_signal_ends_it() {
    let fixture = Fixture::new();
    let program = fixture.compile("calls.c", "linked", &["-lnccl"]);
    // By default, it is SIGUSR1.
    for signal in [None, Some("USR2")] {
        let mut command = fixture.trace(&program);
        command.arg("wait").env_remove("LIBNCCL_RECORDER_SIGNAL").stdout(Stdio::piped());
        let mut process =
            Process(command.envs(signal.map(|name| ("LIBNCCL_RECORDER_SIGNAL", name))).spawn().unwrap());
        assert_eq!(lines(&mut process.0).next().unwrap(), "waiting");
        // It is about to call, and then waits forever.
        let id = process.0.id();
        let diff = || nccl(&format!("recorder diff --json --pid {id}")).output().unwrap();
        let is_unmatched = || {
            let report: Value = serde_json::from_slice(&diff().stdout).unwrap_or_default();
            report["findings"][0]["kind"] == "unmatched_message"
        };
        assert!(wait_until(Duration::from_secs(60), is_unmatched), "{:?}", diff());
        assert_eq!(process.0.try_wait().unwrap(), None, "the program goes on");
        send(id, Signal::TERM);
        assert_eq!(process.0.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        let (_, recording) = &fixture.recordings()[0];
        assert_eq!(recording["reason"], "signal");
        let communicator = &recording["communicators"][0];
        assert_eq!([&communicator["state"], &communicator["count"]], [&json!("in a call"), &json!(1)]);
        let record = &communicator["records"][0];
        assert_eq!([&record["operation"], &record["state"]], ["recv", "called"]);
    }
}

/// Each program waits until all have started, and then exits within a millisecond.
#[test]
fn short_processes_of_one_rank_leave_a_recording_each_and_replace_those_of_earlier_jobs() {
    const ROUNDS: usize = 25;
    let fixture = Fixture::new();
    let program = fixture.compile("short.c", "short", &["-lnccl"]);
    let usual = fixture.path("recordings/rank0.json");
    let mut earlier = None;
    for round in 1..=ROUNDS {
        let start = || {
            let mut command = fixture.trace(&program);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            assert_eq!(lines(&mut child).next().unwrap(), "waiting");
            child
        };
        let mut children = [start(), start(), start()];
        children.iter_mut().for_each(|child| drop(child.stdin.take()));
        children.iter_mut().for_each(|child| assert!(child.wait().unwrap().success()));
        // Recordings with a process id in their names accumulate over all rounds.
        let names: Vec<_> = fixture.recordings().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 1 + 2 * round, "{names:?}");
        let modified = fs::metadata(&usual).unwrap().modified().unwrap();
        assert_ne!(earlier, Some(modified));
        earlier = Some(modified);
    }
}

#[test]
fn exports_are_the_functions_of_nccl_and_a_mark() {
    let library = shared_object("nccl_trace");
    let (printed, _) = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library), 0);
    let found: BTreeSet<_> = printed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    // Those of `nccl_device_host.h` too.
    let declared = read(&repository().join("src/sys/generated/device_functions.rs"));
    let of_devices =
        declared.lines().filter_map(|line| Some(line.trim().strip_prefix("fn ")?.split_once('(')?.0));
    let names = Functions::NAMES.iter().copied().chain(of_devices).chain(["ncclResetDebugInit"]);
    let expected: Vec<_> = names.flat_map(|name| [name.to_owned(), format!("p{name}")]).collect();
    let expected = expected.iter().map(String::as_str).chain(["libnccl_trace"]).collect();
    let differences: Vec<_> = found.symmetric_difference(&expected).collect();
    assert!(differences.is_empty(), "{differences:?}");
    let (dynamic, _) = run(Command::new("readelf").args(["-W", "-d"]).arg(&library), 0);
    assert_has(&dynamic, &["Library soname: [libnccl.so.2]"]);
}

/// Prints the overhead of recording for an operation of a library that does nothing: docs/hangs.md.
#[test]
#[ignore = "measures; to be run alone, optimised: see docs/hangs.md"]
fn cost_of_an_operation() {
    const CALLS: u32 = 20_000_000;
    let fixture = Fixture::new();
    let library =
        std::env::var_os("LIBNCCL_TEST_TRACE").map_or_else(|| shared_object("nccl_trace"), Into::into);
    fixture.compile("few.c", "few.so", &["-shared", "-fPIC", "-O2", "-Wl,-soname,libnccl.so.2"]);
    symlink("few.so", fixture.path("libnccl.so.2")).unwrap();
    let program = fixture.compile("cost.c", "cost", &["-O2", "-lnccl"]);
    for communicators in [1, 8] {
        let run = |is_traced: bool| -> f64 {
            let mut command = Command::new(&program);
            command
                .args([CALLS.to_string(), communicators.to_string()])
                .env("LD_LIBRARY_PATH", fixture.directory.path());
            if is_traced {
                command
                    .env("LD_PRELOAD", &library)
                    .env("LIBNCCL_RECORDER_FILE", fixture.path("recordings/rank"));
                command.env("LIBNCCL_TRACE_LIBRARY", fixture.path("few.so"));
            }
            run(&mut command, 0).0.trim().parse().unwrap()
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

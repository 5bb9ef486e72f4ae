//! Recordings that a signal or a panic writes.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, panic, thread};

use libnccl::{Config, ReduceOp, StreamRef, UniqueId};
use libnccl_observe::{RecordExt, Recorder};
use libnccl_test_support::time_limit;

const PATIENCE: Duration = Duration::from_secs(60);
const STREAM: StreamRef<'static> = StreamRef::DEFAULT;
const SIGUSR2: i32 = 12;

/// Waits in a collective until the other rank, which sleeps until a file exists, calls it too.
#[test]
#[ignore = "the other tests start it as a rank"]
fn rank_process() {
    let Ok(arguments) = env::var("LIBNCCL_TEST_RANK") else { return };
    let (rank, rest) = arguments.split_once(' ').unwrap();
    let (id, directory) = rest.split_once(' ').unwrap();
    let rank: usize = rank.parse().unwrap();
    let (nccl, id, directory): (_, UniqueId, _) =
        (libnccl_cpu::nccl(), id.parse().unwrap(), Path::new(directory));
    Recorder::record_from_env();
    let config = Config::new().timeout(PATIENCE);
    let comm = nccl.communicator(2, rank, &id).config(&config).init().unwrap();
    if env::var_os("LIBNCCL_RECORDER").is_none() {
        comm.record(16);
        Recorder::write_on_signal(SIGUSR2, directory.join(format!("own{rank}.json"))).unwrap();
    }
    println!("\nready");
    while rank == 1 && !directory.join("go").exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let mut sum = [rank as u64 + 1; 3];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, STREAM).unwrap();
    assert_eq!(sum, [3; 3]);
}

/// A process, which is killed when it is dropped.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Rank {
    fn start(rank: usize, id: UniqueId, directory: &Path, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "recorder_signal::rank_process", "--ignored", "--nocapture"]);
        command.env("LIBNCCL_TEST_RANK", format!("{rank} {id} {}", directory.display()));
        for variable in ["LIBNCCL_RECORDER", "LIBNCCL_RECORDER_FILE", "LIBNCCL_RECORDER_SIGNAL"] {
            command.env_remove(variable);
        }
        command.envs(variables.iter().copied());
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits until it has joined.
    fn wait_until_ready(&mut self) {
        let mut lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "the rank ended");
    }

    fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    fn wait(mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

/// Returns a recording, once it is complete.
fn recording(path: PathBuf) -> String {
    let start = Instant::now();
    loop {
        match fs::read_to_string(&path) {
            Ok(text) if text.ends_with('}') => return text,
            _ => assert!(start.elapsed() < PATIENCE, "no recording {}", path.display()),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// The signal and the file are those of the environment, or of the program.
#[test]
fn signal_writes_the_recording_of_each_rank_and_they_go_on() {
    let (id, directory) = (libnccl_cpu::nccl().unique_id().unwrap(), tempfile::tempdir().unwrap());
    let prefix = directory.path().join("rank");
    let of_environment = [
        ("LIBNCCL_RECORDER", "16"),
        ("LIBNCCL_RECORDER_FILE", prefix.to_str().unwrap()),
        ("LIBNCCL_RECORDER_SIGNAL", "SIGUSR1"),
    ];
    for (variables, signal, name) in [(&of_environment[..], "-USR1", "rank"), (&[], "-USR2", "own")] {
        let recording = |rank: usize| recording(directory.path().join(format!("{name}{rank}.json")));
        let mut ranks: Vec<_> =
            (0..2).map(|rank| Rank::start(rank, id, directory.path(), variables)).collect();
        ranks.iter_mut().for_each(Rank::wait_until_ready);
        ranks[1].signal(signal);
        let idle = recording(1);
        let parts = [r#""reason":"signal""#, r#""state":"idle""#, r#""rank":1"#];
        assert!(parts.iter().all(|part| idle.contains(part)), "{idle}");
        let start = Instant::now();
        let process = format!(r#""process":{},"#, ranks[0].0.id());
        let parts = [r#""operation":"all_reduce_in_place""#, r#""state":"called""#, &process];
        // Until the rank is inside the collective.
        loop {
            ranks[0].signal(signal);
            let waiting = recording(0);
            if parts.iter().all(|part| waiting.contains(part)) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{waiting}");
            thread::sleep(Duration::from_millis(5));
        }
        fs::write(directory.path().join("go"), "").unwrap();
        assert!(ranks.into_iter().all(|rank| rank.wait().success()));
        fs::remove_file(directory.path().join("go")).unwrap();
    }
}

#[test]
fn process_without_the_variable_keeps_the_default_of_the_signal() {
    let (id, directory) = (libnccl_cpu::nccl().unique_id().unwrap(), tempfile::tempdir().unwrap());
    for value in [None, Some("KILL")] {
        let recorded = [("LIBNCCL_RECORDER", "16")];
        let named = value.map(|value| ("LIBNCCL_RECORDER_SIGNAL", value));
        let variables: Vec<_> = recorded.into_iter().chain(named).collect();
        let mut ranks: Vec<_> =
            (0..2).map(|rank| Rank::start(rank, id, directory.path(), &variables)).collect();
        let mut rank = ranks.pop().unwrap();
        rank.wait_until_ready();
        rank.signal("-USR1");
        assert_eq!(rank.wait().signal(), Some(10), "{value:?}");
    }
}

#[test]
fn signals_that_cannot_be_handled_are_invalid_input() {
    const SIGKILL: i32 = 9;
    const SIGSEGV: i32 = 11;
    for signal in [SIGKILL, SIGSEGV, -1, 0, 1000] {
        let error = Recorder::write_on_signal(signal, "unused".into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.to_string(), format!("signal {signal} cannot be handled"));
    }
}

/// Runs another, otherwise ignored test of this program. Fails if that test fails or takes too long.
fn run_alone(test: &str, variable: &str, value: impl AsRef<OsStr>) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("recorder_signal::{test}"), "--ignored", "--nocapture"]);
    let _ = time_limit::run(command.env(variable, value));
}

struct RecordPanics(PathBuf);

impl Drop for RecordPanics {
    fn drop(&mut self) {
        Recorder::write_on_panic(self.0.clone());
    }
}

#[test]
#[ignore = "the next test starts it as a process"]
fn panicking_process() {
    let Some(path) = env::var_os("LIBNCCL_TEST_PANIC").map(PathBuf::from) else { return };
    let unwound = RecordPanics(path.clone());
    panic::catch_unwind(move || {
        let _unwound = unwound;
        panic!("the first");
    })
    .unwrap_err();
    drop(RecordPanics(path.clone()));
    panic::catch_unwind(|| panic!("the second")).unwrap_err();
    assert!(recording(path).contains(r#""reason":"panic""#));
}

#[test]
fn write_on_panic_while_unwinding_leaves_it_to_a_later_call() {
    let directory = tempfile::tempdir().unwrap();
    run_alone("panicking_process", "LIBNCCL_TEST_PANIC", directory.path().join("panic.json"));
}

/// A logger that requests the recordings, and records another communicator.
struct Logger(std::sync::Mutex<libnccl::Communicator>);

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.level() == log::Level::Warn {
            println!("{}\n{}", record.args(), Recorder::all_to_json("a warning"));
            self.0.lock().unwrap().record(4);
        }
    }
    fn flush(&self) {}
}

#[test]
#[ignore = "the next test starts it as a process"]
fn logging_process() {
    let Some(signal) = env::var_os("LIBNCCL_RECORDER_SIGNAL") else { return };
    assert_eq!(signal, "none");
    let mut comms = libnccl_cpu::nccl().init_all(&[0, 1]).unwrap();
    log::set_logger(Box::leak(Box::new(Logger(comms.remove(1).into())))).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    comms[0].record(4);
    let recorded = Recorder::all_to_json("the end");
    assert!(recorded.contains(r#""rank":0"#) && recorded.contains(r#""rank":1"#), "{recorded}");
    std::process::exit(0);
}

#[test]
fn logger_can_request_the_recordings() {
    run_alone("logging_process", "LIBNCCL_RECORDER_SIGNAL", "none");
}

//! Rank processes: this test program, started again to run a function that [`rank_tasks!`] names.
//!
//! [`run`] starts a process for every rank of a communicator; [`spawn`] and [`command`] start one, for a test that
//! controls it.

use std::fs::{self, DirEntry};
use std::io::{self, Read};
use std::panic::Location;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::sys::ncclUniqueId;
use rustix::process::{Pid, Signal, kill_process};

use super::{Comm, hex, init_rank, last_error, unique_id};

/// Time after which a process counts as hung.
const LIMIT: Duration = Duration::from_secs(180);

/// The arguments of a rank process.
#[derive(Debug)]
pub(crate) struct RankProcess {
    pub(crate) arguments: Vec<String>,
    pub(crate) id: ncclUniqueId,
    pub(crate) ranks: usize,
    pub(crate) own: Vec<usize>,
}

impl RankProcess {
    fn from_environment(arguments: Vec<String>) -> Self {
        let mut id = ncclUniqueId::default();
        let hex = std::env::var("LIBNCCL_TEST_ID").unwrap();
        for (index, byte) in id.internal.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * index..][..2], 16).unwrap() as _;
        }
        let ranks = std::env::var("LIBNCCL_TEST_RANKS").unwrap().parse().unwrap();
        let own = std::env::var("LIBNCCL_TEST_OWN_RANKS").unwrap();
        Self { arguments, id, ranks, own: own.split(',').map(|rank| rank.parse().unwrap()).collect() }
    }

    /// Returns the rank of a process that has only one.
    pub(crate) fn rank(&self) -> usize {
        assert_eq!(self.own.len(), 1, "this process has several ranks");
        self.own[0]
    }

    pub(crate) fn join(&self) -> Comm {
        self.join_as(self.rank())
    }

    pub(crate) fn join_as(&self, rank: usize) -> Comm {
        init_rank(self.id, self.ranks, rank).unwrap_or_else(|code| panic!("{code:?} {}", last_error()))
    }
}

pub(crate) type Task = fn(&RankProcess);

/// Registers the functions that this file's tests run in rank processes, by their names: `rank_tasks!(sum, hang)`.
macro_rules! rank_tasks {
    ($($function:path),* $(,)?) => {
        /// Runs a task in a rank process; does nothing when `cargo test` runs it.
        #[test]
        fn rank_process() {
            $crate::common::processes::run_task(&[$((stringify!($function), $function)),*]);
        }
    };
}

/// Runs the task that [`command`] has named, if it started this process.
pub(crate) fn run_task(tasks: &[(&str, Task)]) {
    let Ok(command) = std::env::var("LIBNCCL_TEST_TASK") else { return };
    let mut words = command.split(' ').map(str::to_owned);
    let name = words.next().unwrap();
    let Some((_, task)) = tasks.iter().find(|(known, _)| *known == name) else {
        panic!("rank_tasks! has no {name:?}")
    };
    task(&RankProcess::from_environment(words.collect()));
}

/// Returns short limits, for waits that must be reported and time out. They are longer where programs are emulated.
pub(crate) fn limits() -> [(&'static str, &'static str); 2] {
    let is_slow = std::env::var_os("LIBNCCL_TEST_SLOW").is_some();
    let [warn_after, timeout] = if is_slow { ["2", "5"] } else { ["0.5", "1.5"] };
    [("LIBNCCL_CPU_WARN_AFTER", warn_after), ("LIBNCCL_CPU_TIMEOUT", timeout)]
}

/// Waits until other ranks with these limits have timed out waiting for this one.
pub(crate) fn outlast_the_limit() {
    let [_, (_, timeout)] = limits();
    thread::sleep(Duration::from_secs_f64(timeout.parse::<f64>().unwrap() + 2.5));
}

/// Returns the command of a process with the ranks `own`: `task` is a name that [`rank_tasks!`] has in the caller's module,
/// and its arguments after spaces.
#[track_caller]
pub(crate) fn command(task: &str, id: &ncclUniqueId, ranks: usize, own: &[usize]) -> Command {
    // The caller's file, such as `tests/cpu/waits.rs`.
    let (_, file) = Location::caller().file().rsplit_once('/').unwrap();
    let module = file.trim_end_matches(".rs");
    let own: Vec<String> = own.iter().map(ToString::to_string).collect();
    let mut command = test(&[&format!("{module}::rank_process")]);
    command
        .args(["--nocapture", "--test-threads=1"])
        .env("LIBNCCL_TEST_TASK", task)
        .env("LIBNCCL_TEST_ID", hex(&id.internal))
        .env("LIBNCCL_TEST_RANKS", ranks.to_string())
        .env("LIBNCCL_TEST_OWN_RANKS", own.join(","))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Returns the command of a process that runs these tests of this program, by their whole names.
pub(crate) fn test(names: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(names).args(["--exact", "--include-ignored"]);
    command
}

/// Returns whether this process runs only the calling test. If it does not, runs the test again in such a process. For
/// tests that count resources of the process.
pub(crate) fn is_own_process() -> bool {
    const VARIABLE: &str = "LIBNCCL_TEST_OWN_PROCESS";
    let is_own = std::env::var_os(VARIABLE).is_some();
    if !is_own {
        let name = thread::current().name().unwrap().to_owned();
        let output = test(&[&name]).arg("--nocapture").env(VARIABLE, "1").output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        print!("{}", text(&output.stdout));
        assert!(output.status.success(), "{name}: {} {}", output.status, text(&output.stderr));
    }
    is_own
}

#[track_caller]
pub(crate) fn spawn(task: &str, id: &ncclUniqueId, ranks: usize, rank: usize) -> Child {
    command(task, id, ranks, &[rank]).spawn().unwrap()
}

pub(crate) fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Stops a process. One of its threads takes the signal, and the others run on for a moment.
pub(crate) fn stop(process: &Child) {
    kill_process(Pid::from_child(process), Signal::STOP).unwrap();
    let threads = || fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    let is_stopped = |thread: io::Result<DirEntry>| {
        fs::read_to_string(thread.unwrap().path().join("stat")).unwrap().contains(") T ")
    };
    while !threads().all(is_stopped) {
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn resume(process: &Child) {
    kill_process(Pid::from_child(process), Signal::CONT).unwrap();
}

/// Waits until a process has succeeded, and returns the contents of its pipes.
pub(crate) fn finish(mut child: Child) -> String {
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let output = scope.spawn(|| read_to_end(output));
        let errors = scope.spawn(|| read_to_end(errors));
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if Instant::now() > deadline => break None,
                None => thread::sleep(Duration::from_millis(2)),
            }
        };
        if status.is_none() {
            child.kill().unwrap();
        }
        let (output, errors) = (output.join().unwrap(), errors.join().unwrap());
        let printed = output + &errors;
        assert!(status.is_some_and(|status| status.success()), "{status:?} {printed}");
        printed
    })
}

fn read_to_end(pipe: Option<impl Read>) -> String {
    let mut bytes = vec![];
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes).unwrap();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs `task` in processes with these ranks and variables, and returns the output of each.
#[track_caller]
pub(crate) fn run<P: AsRef<[usize]>>(
    task: &str,
    processes: impl IntoIterator<Item = P>,
    variables: &[(&str, &str)],
) -> Vec<String> {
    let (id, processes) = (unique_id(), processes.into_iter().collect::<Vec<_>>());
    let ranks = processes.iter().map(|own| own.as_ref().len()).sum();
    let mut children = vec![];
    // Not in a closure, which would be the caller.
    for own in processes {
        children
            .push(command(task, &id, ranks, own.as_ref()).envs(variables.iter().copied()).spawn().unwrap());
    }
    finish_all(children)
}

/// Waits until all processes have succeeded, and returns the contents of their pipes.
pub(crate) fn finish_all(children: impl IntoIterator<Item = Child>) -> Vec<String> {
    let finishing: Vec<_> = children.into_iter().map(|child| thread::spawn(|| finish(child))).collect();
    finishing.into_iter().map(|child| child.join().unwrap()).collect()
}

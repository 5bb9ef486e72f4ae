//! Rank processes: this test program, started again to run a function that [`rank_tasks!`] names.
//!
//! [`run`] starts a process for every rank of a communicator; [`spawn`] and [`command`] start one, for a test that
//! controls it.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::sys::ncclUniqueId;

use super::{Comm, hex, init_rank, last_error, unique_id};

/// Time after which a process counts as hung.
const LIMIT: Duration = Duration::from_secs(180);

/// The arguments of a rank process.
#[derive(Debug)]
pub struct RankProcess {
    /// The words that follow the task's name.
    pub arguments: Vec<String>,
    pub id: ncclUniqueId,
    pub ranks: usize,
    /// The ranks of this process: usually one.
    pub own: Vec<usize>,
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
    pub fn rank(&self) -> usize {
        assert_eq!(self.own.len(), 1, "this process has several ranks");
        self.own[0]
    }

    /// Creates this process's communicator.
    pub fn join(&self) -> Comm {
        self.join_as(self.rank())
    }

    /// Creates the communicator of one of this process's ranks.
    pub fn join_as(&self, rank: usize) -> Comm {
        init_rank(self.id, self.ranks, rank).unwrap_or_else(|code| panic!("{code:?} {}", last_error()))
    }
}

/// The body of a rank process.
pub type Task = fn(&RankProcess);

/// Registers the functions that this file's tests run in rank processes: `rank_tasks! { "sum" => sum }`.
#[macro_export]
macro_rules! rank_tasks {
    ($($name:expr => $function:path),* $(,)?) => {
        /// Runs a task in a rank process; does nothing when `cargo test` runs it.
        #[test]
        fn rank_process() {
            $crate::common::processes::run_task(&[$(($name, $function)),*]);
        }
    };
}

/// Runs the task that [`command`] has named, if it started this process.
pub fn run_task(tasks: &[(&str, Task)]) {
    let Ok(command) = std::env::var("LIBNCCL_TEST_TASK") else { return };
    let mut words = command.split(' ').map(str::to_owned);
    let name = words.next().unwrap();
    let Some((_, task)) = tasks.iter().find(|(known, _)| *known == name) else {
        panic!("rank_tasks! has no {name:?}")
    };
    task(&RankProcess::from_environment(words.collect()));
}

/// Returns the command of a process with the ranks `own`: `task` is a name of [`rank_tasks!`], and its arguments after
/// spaces.
pub fn command(task: &str, id: &ncclUniqueId, ranks: usize, own: &[usize]) -> Command {
    let own: Vec<String> = own.iter().map(ToString::to_string).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["rank_process", "--exact", "--nocapture", "--test-threads=1"])
        .env("LIBNCCL_TEST_TASK", task)
        .env("LIBNCCL_TEST_ID", hex(&id.internal))
        .env("LIBNCCL_TEST_RANKS", ranks.to_string())
        .env("LIBNCCL_TEST_OWN_RANKS", own.join(","))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// Starts the process of one rank.
pub fn spawn(task: &str, id: &ncclUniqueId, ranks: usize, rank: usize) -> Child {
    command(task, id, ranks, &[rank]).spawn().unwrap()
}

/// Waits until a process has succeeded, and returns what its pipes contain.
pub fn finish(mut child: Child) -> String {
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

/// Runs `task` in a process for each rank of a communicator, and waits until all have succeeded.
pub fn run(task: &str, ranks: usize) {
    let id = unique_id();
    let children: Vec<Child> = (0..ranks).map(|rank| spawn(task, &id, ranks, rank)).collect();
    for child in children {
        finish(child);
    }
}

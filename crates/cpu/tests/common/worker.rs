//! Ranks in processes of their own: this test program, told by its environment to be one.
#![allow(dead_code, unreachable_pub)]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::sys::ncclUniqueId;

use super::common::{Comm, hex, init_rank, last_error, unique_id};

/// How long a process may take before it counts as hung.
const LIMIT: Duration = Duration::from_secs(180);

/// A rank in its process.
#[derive(Debug)]
pub struct Worker {
    pub task: String,
    pub ranks: usize,
    pub rank: usize,
    pub comm: Comm,
}

/// What a process is told.
#[derive(Debug)]
pub struct Orders {
    pub task: String,
    pub id: ncclUniqueId,
    pub ranks: usize,
    /// The ranks that are its own.
    pub own: Vec<usize>,
}

/// What this process is told to be, if it is one: the test that is called `worker` begins with this.
pub fn told() -> Option<Worker> {
    let Orders { task, id, ranks, own } = orders()?;
    let rank = own[0];
    Some(Worker { task, ranks, rank, comm: join(id, ranks, rank) })
}

/// The same before the ranks meet, and where a process may have several.
pub fn orders() -> Option<Orders> {
    let task = std::env::var("LIBNCCL_TEST_TASK").ok()?;
    let mut id = ncclUniqueId::default();
    let hex = std::env::var("LIBNCCL_TEST_ID").unwrap();
    for (index, byte) in id.internal.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * index..][..2], 16).unwrap() as _;
    }
    let ranks = std::env::var("LIBNCCL_TEST_RANKS").unwrap().parse().unwrap();
    let own = std::env::var("LIBNCCL_TEST_RANK").unwrap();
    Some(Orders { task, id, ranks, own: own.split(',').map(|rank| rank.parse().unwrap()).collect() })
}

pub fn join(id: ncclUniqueId, ranks: usize, rank: usize) -> Comm {
    init_rank(id, ranks, rank).unwrap_or_else(|code| panic!("{code:?} {}", last_error()))
}

/// The process of the ranks `own`, to be started.
pub fn command(task: &str, id: &ncclUniqueId, ranks: usize, own: &[usize]) -> Command {
    let own: Vec<String> = own.iter().map(ToString::to_string).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["worker", "--exact", "--nocapture", "--test-threads=1"])
        .env("LIBNCCL_TEST_TASK", task)
        .env("LIBNCCL_TEST_ID", hex(&id.internal))
        .env("LIBNCCL_TEST_RANKS", ranks.to_string())
        .env("LIBNCCL_TEST_RANK", own.join(","))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

pub fn spawn(task: &str, id: &ncclUniqueId, ranks: usize, rank: usize) -> Child {
    command(task, id, ranks, &[rank]).spawn().unwrap()
}

/// Waits until a process has ended well, and returns what it printed as far as that comes here.
pub fn finish(mut child: Child) -> String {
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let output = scope.spawn(|| all_of(output));
        let errors = scope.spawn(|| all_of(errors));
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

fn all_of(pipe: Option<impl Read>) -> String {
    let mut bytes = vec![];
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes).unwrap();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Has as many processes do `task` together.
pub fn together(task: &str, ranks: usize) {
    let id = unique_id();
    let children: Vec<Child> = (0..ranks).map(|rank| spawn(task, &id, ranks, rank)).collect();
    for child in children {
        finish(child);
    }
}

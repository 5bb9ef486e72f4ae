//! Ranks in processes of their own: this test program, told by its environment to be one.
#![allow(dead_code, unreachable_pub)]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::sys::ncclUniqueId;

use super::common::{Comm, init_rank, last_error, unique_id};

/// How long a process may take before it counts as hung.
const LIMIT: Duration = Duration::from_secs(60);

/// A rank in its process.
#[derive(Debug)]
pub struct Worker {
    pub task: String,
    pub ranks: usize,
    pub rank: usize,
    pub comm: Comm,
}

/// What this process is told to be, if it is: the test that is called `worker` begins with this.
pub fn told() -> Option<Worker> {
    let task = std::env::var("LIBNCCL_TEST_TASK").ok()?;
    let number = |name| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (ranks, rank) = (number("LIBNCCL_TEST_RANKS"), number("LIBNCCL_TEST_RANK"));
    let mut id = ncclUniqueId::default();
    let hex = std::env::var("LIBNCCL_TEST_ID").unwrap();
    for (index, byte) in id.internal.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * index..][..2], 16).unwrap() as _;
    }
    let comm = init_rank(id, ranks, rank).unwrap_or_else(|code| panic!("{code:?} {}", last_error()));
    Some(Worker { task, ranks, rank, comm })
}

pub fn spawn(task: &str, id: &ncclUniqueId, ranks: usize, rank: usize) -> Child {
    let hex: String = id.internal.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    Command::new(std::env::current_exe().unwrap())
        .args(["worker", "--exact", "--nocapture", "--test-threads=1"])
        .env("LIBNCCL_TEST_TASK", task)
        .env("LIBNCCL_TEST_ID", hex)
        .env("LIBNCCL_TEST_RANKS", ranks.to_string())
        .env("LIBNCCL_TEST_RANK", rank.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until a process has ended well.
pub fn finish(mut child: Child) {
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
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{status:?} {text}");
}

/// Has as many processes do `task` together.
pub fn together(task: &str, ranks: usize) {
    let id = unique_id();
    let children: Vec<Child> = (0..ranks).map(|rank| spawn(task, &id, ranks, rank)).collect();
    children.into_iter().for_each(finish);
}

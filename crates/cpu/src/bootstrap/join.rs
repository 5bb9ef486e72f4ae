//! Support for joining ranks: the context of a join, reports of long waits, and the join that is shared by all ranks of one
//! process with the same id.
//!
//! The ranks of a process share a connection to the root, the outcome and one mapping. The first rank connects, sends its hello
//! and receives the root's messages. The other ranks send their hellos on the same connection and wait for the outcome. The root
//! does not share a connection: the next rank of its process becomes the first.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cuda_common::finding::Finding;
use rustix::io::Errno;

use crate::bootstrap::wire::{Hello, Message, cancelled, poll_interval, send};
use crate::diag::error::{Error, Result};
use crate::diag::report;
use crate::diag::settings::{TIMEOUT, WARN_AFTER};
use crate::shm::shared_state::SharedState;
use crate::sync::lock;

pub(crate) struct JoinContext<'a> {
    /// The name that reports use for the new communicator.
    pub(crate) name: &'a str,
    pub(crate) check_cancelled: &'a dyn Fn() -> Result,
    /// Called with a description of what this rank waits for.
    pub(crate) waits_for: &'a dyn Fn(String),
    pub(crate) parent: Option<ParentComm<'a>>,
}

pub(crate) struct ParentComm<'a> {
    pub(crate) state: &'a SharedState,
    /// The parent's ranks that become ranks 0, 1, ... of the new communicator.
    pub(crate) members: &'a [usize],
    /// Set if an abort of the parent makes the join fail.
    pub(crate) must_be_healthy: bool,
}

impl JoinContext<'_> {
    /// Returns whether all `ranks` ranks are members of the parent and can therefore observe each other's state there.
    pub(super) fn all_are_members(&self, ranks: usize) -> bool {
        self.parent.as_ref().is_some_and(|parent| parent.members.len() == ranks)
    }

    pub(super) fn rank_name(&self, rank: usize) -> String {
        match self.parent.as_ref().and_then(|parent| parent.members.get(rank)) {
            Some(member) => format!("{rank} (rank {member} of the parent)"),
            None => rank.to_string(),
        }
    }

    /// Returns an error if `rank`, which has not joined, can no longer join.
    pub(super) fn check_alive(&self, rank: usize) -> Result {
        let Some(parent) = &self.parent else { return Ok(()) };
        if parent.must_be_healthy {
            parent.state.check_abort()?;
        }
        parent.members.get(rank).map_or(Ok(()), |member| parent.state.check_alive(*member))
    }
}

/// A wait for other ranks that is reported after `WARN_AFTER` and fails after `TIMEOUT`.
pub(super) struct LimitedWait {
    began: Instant,
    grace: Duration,
    is_reported: Cell<bool>,
}

impl LimitedWait {
    pub(super) fn begin(grace: Duration) -> Self {
        Self { began: Instant::now(), grace, is_reported: Cell::new(false) }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Reports `rank` as waiting: once after `WARN_AFTER`, and again, with an error, after `TIMEOUT`.
    pub(super) fn check(&self, rank: usize, name: &str, describe: impl FnOnce() -> String) -> Result {
        let waited = self.elapsed();
        let is_late = TIMEOUT.is_some_and(|limit| waited >= limit + self.grace);
        if !is_late && (self.is_reported.get() || WARN_AFTER.is_none_or(|limit| waited < limit)) {
            return Ok(());
        }
        self.is_reported.set(true);
        let text = format!("after {:.1} s, in {name}, {}", waited.as_secs_f64(), describe());
        report::report(Finding::LateRank, rank, &text);
        if is_late { Err(Error::remote(format!("{text} (LIBNCCL_CPU_TIMEOUT)"))) } else { Ok(()) }
    }
}

/// A pid and the secret of an id. The pid differs in a forked child.
type Key = (u32, [u8; 16]);

static JOINS: Mutex<BTreeMap<Key, Arc<SharedJoin>>> = Mutex::new(BTreeMap::new());

/// The time until a hello is resent if the kernel's socket buffer was full.
const HELLO_RETRY: Duration = Duration::from_millis(1);

pub(super) struct SharedJoin {
    key: Key,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    connection: Option<Arc<OwnedFd>>,
    /// The ranks that have sent their hello.
    ranks: Vec<usize>,
    /// The ranks that have sent their hello but no longer wait.
    left: Vec<usize>,
    /// Set once the root has received the hellos of all ranks, including ranks of other processes.
    is_complete: bool,
    outcome: Option<Outcome>,
}

#[derive(Debug)]
pub(super) enum Outcome {
    /// The first rank has become the root.
    Root,
    Ended(Result<Arc<SharedState>>),
}

pub(super) enum JoinRole {
    First(FirstRank),
    Other(Arc<SharedJoin>),
}

/// The first rank, which ends the join for the other ranks.
pub(super) struct FirstRank(Arc<SharedJoin>);

pub(super) fn enter(secret: [u8; 16]) -> JoinRole {
    let key = (std::process::id(), secret);
    let mut joins = lock(&JOINS);
    if let Some(join) = joins.get(&key) {
        return JoinRole::Other(Arc::clone(join));
    }
    let join = Arc::new(SharedJoin { key, progress: Mutex::default(), changed: Condvar::new() });
    joins.insert(key, Arc::clone(&join));
    JoinRole::First(FirstRank(join))
}

impl SharedJoin {
    /// Sends `hello` and waits for the outcome. Returns `None` if the rank must call [`enter`] again.
    pub(super) fn wait(&self, hello: Hello, context: &JoinContext<'_>) -> Option<Result<Arc<SharedState>>> {
        let began = Instant::now();
        let mut progress = lock(&self.progress);
        let mut is_sent = false;
        loop {
            match &progress.outcome {
                Some(Outcome::Root) => return None,
                // Either more ranks call than the communicator has, or this rank joins the next communicator with the same id.
                Some(Outcome::Ended(_)) if !is_sent && progress.is_complete => return None,
                Some(Outcome::Ended(result)) => return Some(result.clone()),
                None => {}
            }
            if let Err(error) = (context.check_cancelled)() {
                if is_sent && let Some(connection) = &progress.connection {
                    let _ = send(connection, &Message::Left(cancelled(hello.rank)));
                    progress.left.push(hello.rank);
                }
                return Some(Err(error));
            }
            let mut longest = poll_interval(began.elapsed());
            if !is_sent
                && !progress.is_complete
                && let Some(connection) = &progress.connection
            {
                match send(connection, &Message::Hello(hello)) {
                    Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => longest = HELLO_RETRY,
                    // The first rank detects whether the root has exited.
                    _ => {
                        is_sent = true;
                        progress.ranks.push(hello.rank);
                    }
                }
            }
            progress = self.changed.wait_timeout(progress, longest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl FirstRank {
    /// Allows the other ranks of this process to send their hellos on the connection to the root, on which this rank has sent
    /// `hello`.
    pub(super) fn share(&self, connection: &Arc<OwnedFd>, hello: Hello) {
        let mut progress = lock(&self.0.progress);
        progress.connection = Some(Arc::clone(connection));
        progress.ranks.push(hello.rank);
        self.0.changed.notify_all();
    }

    /// Prevents further ranks from joining, and returns the ranks that have joined.
    pub(super) fn complete(&self) -> Vec<usize> {
        let mut progress = lock(&self.0.progress);
        progress.is_complete = true;
        progress.ranks.clone()
    }

    pub(super) fn end(&self, outcome: Outcome) {
        lock(&JOINS).remove(&self.0.key);
        let mut progress = lock(&self.0.progress);
        if let Outcome::Ended(Ok(state)) = &outcome {
            progress.left.iter().for_each(|rank| state.depart(*rank));
        }
        progress.outcome = Some(outcome);
        self.0.changed.notify_all();
    }
}

impl Drop for FirstRank {
    /// Ends the join if the thread panics.
    fn drop(&mut self) {
        if lock(&self.0.progress).outcome.is_none() {
            self.end(Outcome::Ended(Err(Error::panic())));
        }
    }
}

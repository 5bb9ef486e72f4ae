//! The join of all ranks of one process by one id: they share a connection to the root, the outcome, and one mapping.
//!
//! The first of them connects, says hello, and waits for the root's messages. The others say their hello on its
//! connection and wait for the outcome. The root is on its own: the next rank of its process becomes the first.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::bootstrap::hello::Hello;
use crate::bootstrap::join_context::JoinContext;
use crate::bootstrap::message::{aborted, cancelled};
use crate::bootstrap::socket::poll_interval;
use crate::diag::error::{Error, Result};
use crate::shm::shared_state::SharedState;

/// A process, which differs in a forked child, and the secret of an id.
type Key = (u32, [u8; 16]);

/// The joins that are in progress.
static JOINS: Mutex<BTreeMap<Key, Arc<SharedJoin>>> = Mutex::new(BTreeMap::new());

/// The states that a root of this process has created and not sent to all yet.
static CREATED: Mutex<BTreeMap<Key, Arc<SharedState>>> = Mutex::new(BTreeMap::new());

/// The time after which a hello is sent again for which the kernel had no room.
const HELLO_RETRY: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct SharedJoin {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug)]
struct Progress {
    connection: Option<Arc<OwnedFd>>,
    /// The number of ranks that the first has passed. One that passes another is in no state: the root refuses all.
    number: usize,
    /// The ranks that have said hello, and of these the ones that no longer wait.
    ranks: Vec<usize>,
    left: Vec<usize>,
    /// Set once the root knows all ranks, also those of other processes.
    is_complete: bool,
    outcome: Option<Outcome>,
}

#[derive(Debug)]
enum Outcome {
    Ended(Result<Arc<SharedState>>),
    /// The first rank is the root.
    Root,
}

/// The role of a rank in the join.
pub(super) enum JoinRole {
    First(FirstRank),
    Other(Arc<SharedJoin>),
}

/// The first rank, which has to end the join for the others.
pub(super) struct FirstRank {
    key: Key,
    join: Arc<SharedJoin>,
}

fn key(secret: [u8; 16]) -> Key {
    (std::process::id(), secret)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters this process's join by an id.
pub(super) fn enter(secret: [u8; 16]) -> JoinRole {
    let key = key(secret);
    let mut joins = lock(&JOINS);
    if let Some(join) = joins.get(&key) {
        return JoinRole::Other(Arc::clone(join));
    }
    let (ranks, left) = (vec![], vec![]);
    let progress = Progress { connection: None, number: 0, ranks, left, is_complete: false, outcome: None };
    let join = Arc::new(SharedJoin { progress: Mutex::new(progress), changed: Condvar::new() });
    joins.insert(key, Arc::clone(&join));
    JoinRole::First(FirstRank { key, join })
}

impl SharedJoin {
    /// Says `hello` and waits for the outcome; `None` if the rank has to enter again.
    pub(super) fn wait(&self, hello: Hello, context: &JoinContext<'_>) -> Option<Result<Arc<SharedState>>> {
        let began = Instant::now();
        let mut progress = lock(&self.progress);
        let mut has_said = false;
        loop {
            match &progress.outcome {
                Some(Outcome::Root) => return None,
                // It is one rank too many, or joins the next communicator of the same id.
                Some(Outcome::Ended(_)) if !has_said && progress.is_complete => return None,
                Some(Outcome::Ended(result)) => return Some(result.clone()),
                None => {}
            }
            if let Err(error) = (context.check_cancelled)() {
                if let Some(connection) = progress.connection.as_ref().filter(|_| has_said) {
                    let _ = send(connection, &aborted(hello.rank), SendFlags::NOSIGNAL);
                    if hello.ranks == progress.number {
                        progress.left.push(hello.rank);
                    }
                }
                return Some(Err(error));
            }
            let mut longest = poll_interval(began.elapsed());
            if let Some(connection) =
                progress.connection.as_ref().filter(|_| !has_said && !progress.is_complete)
            {
                match send(connection, &hello.to_bytes(), SendFlags::NOSIGNAL) {
                    Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => longest = HELLO_RETRY,
                    // If the root is gone, the first rank learns it.
                    _ => {
                        has_said = true;
                        if hello.ranks == progress.number {
                            progress.ranks.push(hello.rank);
                        }
                    }
                }
            }
            progress = match self.changed.wait_timeout(progress, longest) {
                Ok((progress, _)) => progress,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn end(&self, outcome: Outcome) {
        let mut progress = lock(&self.progress);
        if let Outcome::Ended(Ok(state)) = &outcome {
            progress.left.iter().for_each(|rank| state.depart(*rank));
        }
        progress.outcome = Some(outcome);
        self.changed.notify_all();
    }
}

impl FirstRank {
    /// Lets the other ranks of this process say hello on the connection to the root, as `hello` was.
    pub(super) fn share(&self, connection: &Arc<OwnedFd>, hello: Hello) {
        let mut progress = lock(&self.join.progress);
        progress.connection = Some(Arc::clone(connection));
        progress.number = hello.ranks;
        progress.ranks.push(hello.rank);
        self.join.changed.notify_all();
    }

    /// Lets no more ranks join, as the root knows all, and returns those of this process.
    pub(super) fn complete(&self) -> Vec<usize> {
        let mut progress = lock(&self.join.progress);
        progress.is_complete = true;
        progress.ranks.clone()
    }

    /// Leaves the join to the next rank of this process, as this one has become the root.
    pub(super) fn become_root(self) {
        self.leave(Outcome::Root);
    }

    /// Ends the join for all ranks of this process. If this rank, `rank`, was cancelled, they learn that.
    pub(super) fn end(
        self,
        result: Result<Arc<SharedState>>,
        rank: usize,
        context: &JoinContext<'_>,
    ) -> Result<Arc<SharedState>> {
        let is_cancelled = result.is_err() && (context.check_cancelled)().is_err();
        self.leave(Outcome::Ended(if is_cancelled { Err(cancelled(rank)) } else { result.clone() }));
        result
    }

    fn leave(&self, outcome: Outcome) {
        lock(&JOINS).remove(&self.key);
        self.join.end(outcome);
    }
}

impl Drop for FirstRank {
    /// Ends the join, unless that is done: the thread panics.
    fn drop(&mut self) {
        if lock(&self.join.progress).outcome.is_none() {
            self.leave(Outcome::Ended(Err(Error::panic())));
        }
    }
}

/// The state that a root of this process has created, for its other ranks, for as long as this lives.
pub(super) struct CreatedState(Key);

impl CreatedState {
    pub(super) fn share(secret: [u8; 16], state: &Arc<SharedState>) -> Self {
        let key = key(secret);
        lock(&CREATED).insert(key, Arc::clone(state));
        Self(key)
    }

    /// Returns the state that a root of this process has created.
    pub(super) fn find(secret: [u8; 16]) -> Option<Arc<SharedState>> {
        lock(&CREATED).get(&key(secret)).cloned()
    }
}

impl Drop for CreatedState {
    fn drop(&mut self) {
        lock(&CREATED).remove(&self.0);
    }
}

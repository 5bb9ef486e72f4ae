//! The root: the rank that accepts the other ranks, creates the shared state and sends it to them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, accept_with, shutdown};

use crate::bootstrap::join::{JoinContext, LimitedWait};
use crate::bootstrap::unique_id::random;
use crate::bootstrap::wire::{
    Hello, LIVENESS_INTERVAL, Message, POLL_INTERVAL, SOCKET_FLAGS, cancelled, gone, is_same_user, pid_of,
    poll_interval, receive, receive_now, send, send_file, wait,
};
use crate::diag::debug;
use crate::diag::error::{Error, Result};
use crate::shm::layout::MAX_RANKS;
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;

/// The time for which the root of a failed rendezvous notifies ranks that join later.
pub(super) const LINGER: Duration = Duration::from_millis(500);

const MAX_NAMED: usize = 32;

/// The maximum number of connections without a valid hello, in addition to the number of ranks.
const MAX_UNAUTHENTICATED: usize = 64;

pub(super) struct Root<'a> {
    listener: OwnedFd,
    hello: Hello,
    context: &'a JoinContext<'a>,
    /// The processes that have sent a hello.
    connections: Vec<Connection>,
    joined: Vec<Option<Process>>,
    /// Connections that have not sent a hello yet.
    unauthenticated: Vec<OwnedFd>,
    /// The number of ranks that are no longer connected.
    former: usize,
    /// The number of ranks that may join: the largest `nranks` that a rank has passed.
    expected: usize,
}

struct Connection {
    socket: OwnedFd,
    process: Process,
    ranks: Vec<usize>,
}

impl Connection {
    fn gone(&self) -> Error {
        let who = self.ranks.first().map_or_else(|| "a refused rank".into(), |rank| format!("rank {rank}"));
        gone(&who, Some(self.process))
    }
}

impl<'a> Root<'a> {
    pub(super) fn new(listener: OwnedFd, hello: Hello, context: &'a JoinContext<'a>) -> Self {
        let me = Process { pid: std::process::id().into(), identity: hello.identity };
        let joined = (0..hello.ranks).map(|rank| (rank == hello.rank).then_some(me)).collect();
        // A process whose call was refused has not sent a number of ranks.
        let expected = if hello.ranks == 0 { MAX_RANKS } else { hello.ranks };
        let (connections, unauthenticated) = (vec![], vec![]);
        Self { listener, hello, context, connections, joined, unauthenticated, former: 0, expected }
    }

    pub(super) fn run(mut self) -> Result<Arc<SharedState>> {
        let result = self.accept_all().and_then(|()| self.share_state());
        match &result {
            Ok(_) => {
                // With NCCL_COMM_ID, released ranks may immediately return to this address for another communicator, and must not
                // find this listener there.
                drop(self.listener);
                send_to_all(&self.connections, &Message::Ready);
            }
            Err(error) if (self.context.check_cancelled)().is_ok() => self.refuse_all(error),
            // A cancelled rank must not linger. A peer replaces it.
            Err(_) => send_to_all(&self.connections, &Message::Left(cancelled(self.hello.rank))),
        }
        result
    }

    fn accept_all(&mut self) -> Result {
        let (waiting, mut checked) = (LimitedWait::begin(Duration::ZERO), Instant::now());
        let describe = |root: &Self| describe(&root.joined, |rank| root.context.rank_name(rank));
        (self.context.waits_for)(describe(self));
        while self.joined.contains(&None) {
            if let Some((index, hello)) = self.next_hello(poll_interval(waiting.elapsed()))? {
                self.accept(index, hello)?;
                (self.context.waits_for)(describe(self));
            } else if checked.elapsed() >= LIVENESS_INTERVAL {
                checked = Instant::now();
                waiting.check(self.hello.rank, self.context.name, || describe(self))?;
                if let Some(index) = self.connections.iter().position(|other| other.process.ended()) {
                    return Err(self.remove(index).gone());
                }
                let mut absent = (0..self.hello.ranks).filter(|rank| self.joined[*rank].is_none());
                absent.try_for_each(|rank| self.context.check_alive(rank))?;
            }
        }
        Ok(())
    }

    fn accept(&mut self, index: usize, hello: Hello) -> Result {
        let Hello { ranks, rank, .. } = hello;
        if ranks == 0 {
            // The error follows.
            return Ok(());
        }
        if ranks != self.hello.ranks || self.joined[rank].is_some() {
            self.former += 1;
            self.expected = self.expected.max(ranks);
            return Err(self.conflict(hello));
        }
        let connection = &mut self.connections[index];
        connection.ranks.push(rank);
        self.joined[rank] = Some(connection.process);
        Ok(())
    }

    fn conflict(&self, Hello { ranks, rank, .. }: Hello) -> Error {
        if ranks == self.hello.ranks {
            return Error::usage(format!("two callers passed rank {rank}"));
        }
        Error::usage(format!(
            "the ranks passed different nranks: rank {rank} passed {ranks}, rank {} passed {}",
            self.hello.rank, self.hello.ranks
        ))
    }

    /// Creates the shared state, sends it to all processes and waits until they have opened it.
    fn share_state(&self) -> Result<Arc<SharedState>> {
        let processes: Vec<Process> = self.joined.iter().copied().flatten().collect();
        let (state, file) = SharedState::create(&processes)?;
        state.set_nonce(random()?);
        let state = Arc::new(state);
        // For the other ranks of this process, which find it by its nonce.
        state.register();
        for Connection { socket, .. } in &self.connections {
            // The reply shows whether the process still exists.
            let _ = send_file(socket, &file);
        }
        for connection in &self.connections {
            let Connection { socket, process, .. } = connection;
            match receive(socket, Some(*process), self.context.check_cancelled)? {
                Some((Message::Ready, _)) => {}
                Some((Message::Failed(error) | Message::Left(error), _)) => return Err(error),
                Some((Message::Hello(hello), _)) => return Err(self.conflict(hello)),
                None => return Err(connection.gone()),
            }
        }
        Ok(state)
    }

    /// Sends the error to all ranks that have joined and, during [`LINGER`], to ranks that join later. Members of a parent
    /// observe each other's state there and need no message.
    pub(super) fn refuse_all(&mut self, error: &Error) {
        let message = Message::Failed(error.clone());
        send_to_all(&self.connections, &message);
        let joined = self.connections.drain(..).map(|connection| connection.ranks.len());
        let mut refused = self.former + joined.sum::<usize>();
        let ranks = self.hello.ranks;
        let end = Instant::now() + LINGER;
        while refused + 1 < self.expected && Instant::now() < end && !self.context.all_are_members(ranks) {
            match self.next_hello(POLL_INTERVAL) {
                Ok(Some((index, _))) => {
                    let _ = send(&self.connections.swap_remove(index).socket, &message);
                    refused += 1;
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
        // A process that was forked in the meantime may keep the socket open a little longer. No rank may connect to it there.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }

    /// Waits for a hello or for the end of a process, for at most `longest`. Returns the hello and the index of its connection.
    fn next_hello(&mut self, longest: Duration) -> Result<Option<(usize, Hello)>> {
        (self.context.check_cancelled)()?;
        let processes = self.connections.iter().map(|connection| &connection.socket);
        let mut watched: Vec<PollFd<'_>> = std::iter::once(&self.listener)
            .chain(processes)
            .chain(&self.unauthenticated)
            .map(|file| PollFd::new(file, PollFlags::IN))
            .collect();
        wait(&mut watched, longest)?;
        let events: Vec<bool> = watched.iter().map(|file| !file.revents().is_empty()).collect();
        let (processes, unauthenticated) = events[1..].split_at(self.connections.len());
        if let Some(index) = processes.iter().position(|event| *event) {
            return self.receive_from(index);
        }
        if let Some(index) = unauthenticated.iter().position(|event| *event) {
            return self.authenticate(index);
        }
        if events[0] {
            match accept_with(&self.listener, SOCKET_FLAGS) {
                Ok(connection) => self.unauthenticated.push(connection),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => {}
                Err(error) => return Err(Error::system("a rank's connection cannot be accepted", error)),
            }
            if self.unauthenticated.len() > self.hello.ranks + MAX_UNAUTHENTICATED {
                self.unauthenticated.remove(0);
            }
        }
        Ok(None)
    }

    /// Receives the hello of another rank of a connected process, or an error sent by a rank.
    fn receive_from(&mut self, index: usize) -> Result<Option<(usize, Hello)>> {
        match receive_now(&self.connections[index].socket) {
            Err(Errno::AGAIN) => Ok(None),
            Ok(Some((Message::Hello(hello), _))) if hello.secret == self.hello.secret => {
                Ok(Some((index, hello)))
            }
            Ok(Some((Message::Failed(error) | Message::Left(error), _))) => {
                self.remove(index);
                Err(error)
            }
            _ => Err(self.remove(index).gone()),
        }
    }

    /// Receives the first hello of a process. The process must belong to this user, and the hello must contain the secret.
    fn authenticate(&mut self, index: usize) -> Result<Option<(usize, Hello)>> {
        let socket = self.unauthenticated.remove(index);
        let received = if is_same_user(&socket) { receive_now(&socket) } else { Ok(None) };
        let hello = match received {
            Ok(Some((Message::Hello(hello), _))) if hello.secret == self.hello.secret => hello,
            _ => {
                debug::warn(|| "rejected a bootstrap connection: wrong user or secret".into());
                return Ok(None);
            }
        };
        let process = Process { pid: pid_of(&socket)?, identity: hello.identity };
        if let Err(error) = check_identity(process, hello.rank) {
            let _ = send(&socket, &Message::Failed(error.clone()));
            self.former += 1;
            return Err(error);
        }
        self.connections.push(Connection { socket, process, ranks: vec![] });
        Ok(Some((self.connections.len() - 1, hello)))
    }

    fn remove(&mut self, index: usize) -> Connection {
        let connection = self.connections.swap_remove(index);
        // A process whose call was refused has no rank.
        self.former += connection.ranks.len().max(1);
        connection
    }
}

fn send_to_all(connections: &[Connection], message: &Message) {
    for Connection { socket, .. } in connections {
        let _ = send(socket, message);
    }
}

/// Describes the absent ranks, and the processes of the ranks that have joined. If ranks create several communicators in
/// different orders, these descriptions together show which rank waits for which.
fn describe(joined: &[Option<Process>], name: impl Fn(usize) -> String) -> String {
    let (present, absent): (Vec<usize>, Vec<usize>) =
        (0..joined.len()).partition(|rank| joined[*rank].is_some());
    if absent.is_empty() {
        return format!("all {} ranks have joined, but not all have confirmed it", joined.len());
    }
    let process = |rank: usize| joined[rank].map_or(0, |process| process.pid);
    format!(
        "{} of {} ranks have joined; missing: {}; joined: {}",
        present.len(),
        joined.len(),
        list(&absent, name),
        list(&present, |rank| format!("{rank} (process {})", process(rank)))
    )
}

fn list(ranks: &[usize], name: impl Fn(usize) -> String) -> String {
    let named: Vec<_> = ranks.iter().take(MAX_NAMED).map(|rank| name(*rank)).collect();
    let plural = if ranks.len() == 1 { "" } else { "s" };
    let more = if ranks.len() > MAX_NAMED { ", ..." } else { "" };
    format!("rank{plural} {}{more}", named.join(", "))
}

/// Checks the identity that the process of `rank` has sent: this process must determine the same one for it.
fn check_identity(process: Process, rank: usize) -> Result {
    match Process::from_pid(process.pid) {
        Ok(found) if found != process => Err(Error::usage(format!(
            "this process cannot check whether the process of rank {rank} runs, because they disagree on its start time: \
             they are in different time namespaces"
        ))),
        // The end of a process is detected later.
        _ => Ok(()),
    }
}

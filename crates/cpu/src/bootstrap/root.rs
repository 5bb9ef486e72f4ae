//! The root: the rank that accepts the others, creates the shared state and sends it to them.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libnccl::sys::ncclResult_t;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, accept_with, recv, send,
    sendmsg, shutdown,
};

use crate::bootstrap::hello::Hello;
use crate::bootstrap::join_context::JoinContext;
use crate::bootstrap::message::{
    MAX_MESSAGE, READY, aborted, aborted_rank, cancelled, duplicate, failure, gone,
};
use crate::bootstrap::shared_join::CreatedState;
use crate::bootstrap::socket::{
    FLAGS, LIVENESS_INTERVAL, POLL_INTERVAL, is_same_user, pid_of, poll_interval, receive, wait,
};
use crate::bootstrap::unique_id::random;
use crate::diag::debug;
use crate::diag::error::{Error, Result};
use crate::diag::finding::Finding;
use crate::diag::report;
use crate::diag::settings::{TIMEOUT, WARN_AFTER};
use crate::shm::layout::MAX_RANKS;
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;

/// The time for which the root of a failed rendezvous stays to tell ranks that come later.
pub(super) const LINGER: Duration = Duration::from_millis(500);

const SUCCESS: [u8; 4] = ncclResult_t::ncclSuccess.0.to_ne_bytes();

/// Absent ranks that are named at most.
const MAX_NAMED: usize = 32;

/// Connections without a valid hello that are kept, beyond the number of ranks.
const MAX_UNAUTHENTICATED: usize = 64;

pub(super) struct Root<'a> {
    listener: OwnedFd,
    hello: Hello,
    context: &'a JoinContext<'a>,
    /// The processes of the ranks that have joined.
    connections: Vec<Connection>,
    /// The index of the connection of each rank that has joined.
    joined: Vec<Option<usize>>,
    /// Connections that have not sent a hello yet.
    unauthenticated: Vec<OwnedFd>,
    /// The number of ranks that came and are no longer connected.
    former: usize,
    /// The number of ranks that may come: the largest that one has passed.
    expected: usize,
}

/// The connection to a process, which sends the hello of each of its ranks.
struct Connection {
    socket: OwnedFd,
    process: Process,
    ranks: Vec<usize>,
}

impl Connection {
    /// Returns the error of ranks that have ended their connection without a message.
    fn gone(&self) -> Error {
        let who = self.ranks.first().map_or_else(|| "a refused rank".into(), |rank| format!("rank {rank}"));
        gone(&who, Some(self.process))
    }
}

impl<'a> Root<'a> {
    pub(super) fn new(listener: OwnedFd, hello: Hello, context: &'a JoinContext<'a>) -> Self {
        let joined = vec![None; hello.ranks];
        // A refused process does not know how many will come.
        let expected = if hello.is_of_refused() { MAX_RANKS } else { hello.ranks };
        let (connections, unauthenticated) = (vec![], vec![]);
        Self { listener, hello, context, connections, joined, unauthenticated, former: 0, expected }
    }

    /// Waits for all ranks and returns the state that they share, which this process, `me`, creates.
    pub(super) fn run(mut self, me: Process) -> Result<Arc<SharedState>> {
        let result = self.accept_all().and_then(|()| self.send_state(me));
        match &result {
            Ok(_) => self.release_all(),
            Err(error) => match (self.context.check_cancelled)() {
                Ok(()) => self.refuse_all(error),
                Err(_) => self.leave(),
            },
        }
        result
    }

    /// Tells all processes that every rank has the state. With `NCCL_COMM_ID` they may come to the same address at once,
    /// for another communicator, and must not find this listener there any more.
    fn release_all(self) {
        let Self { listener, connections, .. } = self;
        drop(listener);
        for Connection { socket, .. } in &connections {
            let _ = send(socket, &SUCCESS, SendFlags::NOSIGNAL);
        }
    }

    /// Tells all who are connected that this rank was cancelled. It may not stay; one of them takes its place.
    fn leave(&self) {
        for Connection { socket, .. } in &self.connections {
            let _ = send(socket, &aborted(self.hello.rank), SendFlags::NOSIGNAL);
        }
    }

    /// Waits until every other rank has joined.
    fn accept_all(&mut self) -> Result {
        let (began, mut checked, mut is_reported) = (Instant::now(), Instant::now(), false);
        (self.context.waits_for)(self.describe_absent());
        while self.connections.iter().map(|process| process.ranks.len()).sum::<usize>() + 1 < self.hello.ranks
        {
            if let Some((index, hello)) = self.next_hello(poll_interval(began.elapsed()))? {
                self.accept(index, hello)?;
                (self.context.waits_for)(self.describe_absent());
            } else if checked.elapsed() >= LIVENESS_INTERVAL {
                checked = Instant::now();
                let is_late = TIMEOUT.is_some_and(|limit| began.elapsed() >= limit);
                if is_late || !is_reported && WARN_AFTER.is_some_and(|limit| began.elapsed() >= limit) {
                    is_reported = true;
                    let waited = began.elapsed().as_secs_f64();
                    let text =
                        format!("after {waited:.1} s, in {}, {}", self.context.name, self.describe_absent());
                    report::report(Finding::LateRank, self.hello.rank, &text);
                    if is_late {
                        return Err(Error::remote(format!("{text} (LIBNCCL_CPU_TIMEOUT)")));
                    }
                }
                if let Some(index) = self.connections.iter().position(|other| other.process.ended()) {
                    return Err(self.remove(index).gone());
                }
                let is_absent = |rank: &usize| *rank != self.hello.rank && self.joined[*rank].is_none();
                (0..self.hello.ranks)
                    .filter(is_absent)
                    .try_for_each(|rank| self.context.check_alive(rank))?;
            }
        }
        Ok(())
    }

    /// Describes the ranks that have not come, and the processes of those that have: if ranks create several communicators in
    /// different orders, the reports together show who waits for whom.
    fn describe_absent(&self) -> String {
        let Hello { ranks, rank, .. } = self.hello;
        let absent: Vec<usize> =
            (0..ranks).filter(|other| *other != rank && self.joined[*other].is_none()).collect();
        let process = |rank: usize| match self.joined[rank] {
            Some(index) => self.connections[index].process.pid,
            None => std::process::id().into(),
        };
        let joined = |rank| format!("{rank} (process {})", process(rank));
        describe(ranks, &absent, |rank| self.context.name(rank), joined)
    }

    /// Accepts a rank of a process that is connected.
    fn accept(&mut self, index: usize, hello: Hello) -> Result {
        let Hello { ranks, rank, .. } = hello;
        if hello.is_of_refused() {
            // The reason follows.
            return Ok(());
        }
        if ranks != self.hello.ranks || rank == self.hello.rank || self.joined[rank].is_some() {
            self.former += 1;
            self.expected = self.expected.max(ranks);
            return Err(self.mistake(hello));
        }
        self.connections[index].ranks.push(rank);
        self.joined[rank] = Some(index);
        Ok(())
    }

    /// Returns the error of a rank that does not fit those that have joined.
    fn mistake(&self, Hello { ranks, rank, .. }: Hello) -> Error {
        if ranks == self.hello.ranks {
            return duplicate(rank);
        }
        Error::usage(format!(
            "the ranks passed different nranks: rank {rank} passed {ranks}, rank {} passed {}",
            self.hello.rank, self.hello.ranks
        ))
    }

    /// Creates the shared state, sends it to all processes and waits until they have it.
    fn send_state(&self, me: Process) -> Result<Arc<SharedState>> {
        let process = |index: &Option<usize>| index.map_or(me, |index| self.connections[index].process);
        let processes: Vec<Process> = self.joined.iter().map(process).collect();
        let (state, file) = SharedState::create(&processes)?;
        state.set_nonce(random()?);
        let state = Arc::new(state);
        let _created = CreatedState::share(self.hello.secret, &state);
        let files = [file.as_fd()];
        for Connection { socket, .. } in &self.connections {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&files));
            // The answer shows whether it is still there.
            let _ = sendmsg(socket, &[IoSlice::new(&SUCCESS)], &mut control, SendFlags::NOSIGNAL);
        }
        for connection in &self.connections {
            let mut answer = [0; MAX_MESSAGE];
            let Connection { socket, process, .. } = connection;
            let received = receive(socket, Some(*process), self.context, || {
                recv(socket, &mut answer, RecvFlags::empty())
            })?;
            let answer = received.map_or(&[][..], |(_, length)| &answer[..length.min(MAX_MESSAGE)]);
            if let Some(error) = failure(answer) {
                return Err(error);
            }
            if answer != READY {
                return Err(match (aborted_rank(answer), Hello::from_bytes(answer)) {
                    (Some(rank), _) => cancelled(rank),
                    (_, Some(hello)) => self.mistake(hello),
                    _ => connection.gone(),
                });
            }
        }
        Ok(state)
    }

    /// Sends the error to all that have joined, and for a while to all that still come. Members of a parent see each
    /// other's state and need not come.
    pub(super) fn refuse_all(&mut self, error: &Error) {
        let mut refused = self.former;
        for Connection { socket, ranks, .. } in std::mem::take(&mut self.connections) {
            send_error(&socket, error);
            refused += ranks.len();
        }
        self.joined.fill(None);
        let ranks = self.hello.ranks;
        let end = Instant::now() + LINGER;
        while refused + 1 < self.expected && Instant::now() < end && !self.context.all_are_members(ranks) {
            match self.next_hello(POLL_INTERVAL) {
                Ok(Some((index, _))) => {
                    send_error(&self.connections.swap_remove(index).socket, error);
                    refused += 1;
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
        // A process that was forked meanwhile may hold the socket a little longer: nobody may connect to it there.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }

    /// Waits a little for an authenticated rank, or for a process to end, and returns the index of the connection and
    /// the hello.
    fn next_hello(&mut self, longest: Duration) -> Result<Option<(usize, Hello)>> {
        (self.context.check_cancelled)()?;
        let processes = self.connections.iter().map(|process| &process.socket);
        let mut watched: Vec<PollFd<'_>> = std::iter::once(&self.listener)
            .chain(processes)
            .chain(&self.unauthenticated)
            .map(|file| PollFd::new(file, PollFlags::IN))
            .collect();
        wait(&mut watched, longest)?;
        let events: Vec<bool> = watched.iter().map(|file| !file.revents().is_empty()).collect();
        let (processes, unauthenticated) = events[1..].split_at(self.connections.len());
        if let Some(index) = processes.iter().position(|event| *event) {
            return self.receive(index);
        }
        if let Some(index) = unauthenticated.iter().position(|event| *event) {
            let socket = self.unauthenticated.remove(index);
            let Some(hello) = self.authenticate(&socket) else { return Ok(None) };
            let process = Process { pid: pid_of(&socket)?, identity: hello.identity };
            if let Err(error) = check_identity(process, hello.rank) {
                send_error(&socket, &error);
                self.former += 1;
                return Err(error);
            }
            self.connections.push(Connection { socket, process, ranks: vec![] });
            return Ok(Some((self.connections.len() - 1, hello)));
        }
        if events[0] {
            match accept_with(&self.listener, FLAGS) {
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

    /// Receives from a process: the hello of another rank. Otherwise a rank was cancelled or has failed, or this is its end.
    fn receive(&mut self, index: usize) -> Result<Option<(usize, Hello)>> {
        let mut bytes = [0; MAX_MESSAGE];
        let received = recv(&self.connections[index].socket, &mut bytes, RecvFlags::DONTWAIT);
        let message = &bytes[..received.map_or(0, |(_, length)| length.min(bytes.len()))];
        if let Some(error) = failure(message) {
            self.remove(index);
            return Err(error);
        }
        match Hello::from_bytes(message) {
            Some(hello) if hello.secret == self.hello.secret => Ok(Some((index, hello))),
            _ => {
                let connection = self.remove(index);
                Err(aborted_rank(message).map_or_else(|| connection.gone(), cancelled))
            }
        }
    }

    /// Removes the connection of ranks that have ended it.
    fn remove(&mut self, index: usize) -> Connection {
        let connection = self.connections.swap_remove(index);
        // A process that was refused has none.
        self.former += connection.ranks.len().max(1);
        // The other indices are not needed any more.
        self.joined.fill(None);
        connection
    }

    /// Receives a connection's hello, which has to be of this user and with the secret.
    fn authenticate(&self, connection: &OwnedFd) -> Option<Hello> {
        let mut bytes = [0; Hello::SIZE + 1];
        let length = recv(connection, &mut bytes, RecvFlags::DONTWAIT).map_or(0, |(_, length)| length);
        let hello = Hello::from_bytes(&bytes[..length.min(bytes.len())]);
        let valid = hello.filter(|hello| is_same_user(connection) && hello.secret == self.hello.secret);
        if valid.is_none() {
            debug::warn(|| "rejected a bootstrap connection: wrong user or secret".into());
        }
        valid
    }
}

fn send_error(connection: &OwnedFd, error: &Error) {
    let text = &error.text.as_bytes()[..error.text.len().min(MAX_MESSAGE - 4)];
    let _ = send(connection, &[&error.code.0.to_ne_bytes(), text].concat(), SendFlags::NOSIGNAL);
}

/// Describes the absent ranks, if there are any, by their names.
fn describe(
    ranks: usize,
    absent: &[usize],
    absent_name: impl Fn(usize) -> String,
    joined_name: impl Fn(usize) -> String,
) -> String {
    if absent.is_empty() {
        return format!("all {ranks} ranks have joined, but not all have confirmed it");
    }
    let joined: Vec<usize> = (0..ranks).filter(|rank| !absent.contains(rank)).collect();
    format!(
        "{} of {ranks} ranks have come; missing: {}; come: {}",
        joined.len(),
        list(absent, absent_name),
        list(&joined, joined_name)
    )
}

/// Lists the first ranks by name.
fn list(ranks: &[usize], name: impl Fn(usize) -> String) -> String {
    let named: Vec<_> = ranks.iter().take(MAX_NAMED).map(|rank| name(*rank)).collect();
    let plural = if ranks.len() == 1 { "" } else { "s" };
    let more = if ranks.len() > MAX_NAMED { ", ..." } else { "" };
    format!("rank{plural} {}{more}", named.join(", "))
}

/// Checks that this process finds the identity that the process of `rank` has found itself.
fn check_identity(process: Process, rank: usize) -> Result {
    match Process::from_pid(process.pid) {
        Ok(found) if found != process => Err(Error::usage(format!(
            "this process cannot tell whether that of rank {rank} runs, as they do not agree on its start time: they are \
             in different time namespaces, or only one of them may call pidfd_open; with Linux 6.9 or newer, time \
             namespaces make no difference"
        ))),
        // One that has ended is noticed later.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::describe;

    #[test]
    fn absent_ranks_are_listed_only_if_there_are_any() {
        let process = |rank| format!("{rank} (process 7)");
        let text = |absent: &[usize]| describe(2, absent, |rank| rank.to_string(), process);
        assert_eq!(text(&[1]), "1 of 2 ranks have come; missing: rank 1; come: rank 0 (process 7)");
        assert_eq!(text(&[]), "all 2 ranks have joined, but not all have confirmed it");
    }
}

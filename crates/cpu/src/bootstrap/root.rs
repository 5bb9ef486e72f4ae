//! The root: the rank that accepts the others, creates the shared state and sends it to them.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libnccl::sys::ncclResult_t;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, accept_with, recv, send, sendmsg,
};

use crate::bootstrap::hello::Hello;
use crate::bootstrap::join_context::JoinContext;
use crate::bootstrap::socket::{
    ABORTED, FLAGS, LIVENESS_INTERVAL, MAX_MESSAGE, POLL_INTERVAL, READY, is_same_user, pid_of, receive, wait,
};
use crate::bootstrap::unique_id::random;
use crate::diag::debug;
use crate::diag::error::{Error, Result};
use crate::diag::wait_limits::{self, TIMEOUT, WARN_AFTER};
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
    /// The peers that have joined, by rank.
    peers: Vec<Option<Peer>>,
    /// Connections that have not sent a hello yet.
    unauthenticated: Vec<OwnedFd>,
    /// The number of ranks that joined and are no longer peers.
    former: usize,
}

struct Peer {
    connection: OwnedFd,
    process: Process,
}

impl<'a> Root<'a> {
    pub(super) fn new(listener: OwnedFd, hello: Hello, context: &'a JoinContext<'a>) -> Self {
        let peers = (0..hello.ranks).map(|_| None).collect();
        Self { listener, hello, context, peers, unauthenticated: vec![], former: 0 }
    }

    /// Waits for all ranks and returns the state that they share, which this process, `me`, creates.
    pub(super) fn run(mut self, me: Process) -> Result<SharedState> {
        let result = self.accept_all().and_then(|()| self.send_state(me));
        match &result {
            Ok(_) => self.release_all(),
            Err(error) => match (self.context.check_cancelled)() {
                Ok(()) => self.refuse_all(error),
                Err(_) => self.refuse_all(&cancelled(self.hello.rank)),
            },
        }
        result
    }

    /// Tells all peers that every rank has the state. With `NCCL_COMM_ID` they may come to the same address at once, for
    /// another communicator, and must not find this listener there any more.
    fn release_all(self) {
        let Self { listener, peers, .. } = self;
        drop(listener);
        for peer in peers.iter().flatten() {
            let _ = send(&peer.connection, &SUCCESS, SendFlags::NOSIGNAL);
        }
    }

    /// Waits until every other rank has joined.
    fn accept_all(&mut self) -> Result {
        let (began, mut checked, mut is_reported) = (Instant::now(), Instant::now(), false);
        while self.peers.iter().flatten().count() + 1 < self.hello.ranks {
            if let Some((connection, hello)) = self.next_hello()? {
                self.accept(connection, hello)?;
            } else if checked.elapsed() >= LIVENESS_INTERVAL {
                checked = Instant::now();
                let is_late = TIMEOUT.is_some_and(|limit| began.elapsed() >= limit);
                if is_late || !is_reported && WARN_AFTER.is_some_and(|limit| began.elapsed() >= limit) {
                    is_reported = true;
                    let text = self.describe_absent(began.elapsed());
                    wait_limits::report(&text);
                    if is_late {
                        return Err(Error::remote(format!("{text} (LIBNCCL_CPU_TIMEOUT)")));
                    }
                }
                let ended = self.joined().find(|(_, peer)| peer.process.ended()).map(|(rank, _)| rank);
                if let Some(rank) = ended {
                    self.former += 1;
                    self.peers[rank] = None;
                    return Err(died(rank));
                }
                let is_absent = |rank: &usize| *rank != self.hello.rank && self.peers[*rank].is_none();
                (0..self.hello.ranks)
                    .filter(is_absent)
                    .try_for_each(|rank| self.context.check_alive(rank))?;
            }
        }
        Ok(())
    }

    /// Describes the ranks that have not come.
    fn describe_absent(&self, waited: Duration) -> String {
        let Hello { ranks, rank, .. } = self.hello;
        let absent: Vec<usize> =
            (0..ranks).filter(|other| *other != rank && self.peers[*other].is_none()).collect();
        let named = absent.iter().take(MAX_NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let more = if absent.len() > MAX_NAMED { ", ..." } else { "" };
        let (number, waited) = (ranks - absent.len(), waited.as_secs_f64());
        format!("after {waited:.1} s, {number} of {ranks} ranks have come; missing: {named}{more}")
    }

    fn accept(&mut self, connection: OwnedFd, hello: Hello) -> Result {
        let Hello { ranks, rank, started, .. } = hello;
        let mistake = if ranks != self.hello.ranks {
            format!(
                "the ranks passed different nranks: rank {rank} passed {ranks}, rank {} passed {}",
                self.hello.rank, self.hello.ranks
            )
        } else if rank == self.hello.rank || self.peers[rank].is_some() {
            format!("two callers passed rank {rank}")
        } else {
            let pid = pid_of(&connection)?;
            self.peers[rank] = Some(Peer { connection, process: Process { pid, started } });
            return Ok(());
        };
        let error = Error::usage(mistake);
        send_error(&connection, &error);
        self.former += 1;
        Err(error)
    }

    /// Creates the shared state, sends it to all peers and waits until they have it.
    fn send_state(&self, me: Process) -> Result<SharedState> {
        let process = |peer: &Option<Peer>| peer.as_ref().map_or(me, |peer| peer.process);
        let processes: Vec<Process> = self.peers.iter().map(process).collect();
        let (state, file) = SharedState::create(&processes)?;
        state.set_nonce(random()?);
        let files = [file.as_fd()];
        for (_, peer) in self.joined() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&files));
            // The peer's answer shows whether it is still there.
            let _ = sendmsg(&peer.connection, &[IoSlice::new(&SUCCESS)], &mut control, SendFlags::NOSIGNAL);
        }
        for (rank, Peer { connection, process }) in self.joined() {
            let mut answer = [0; 8];
            let received = receive(connection, Some(*process), self.context, || {
                recv(connection, &mut answer, RecvFlags::empty())
            })?;
            match received.map(|(_, length)| &answer[..length]) {
                Ok(READY) => {}
                Ok(ABORTED) => return Err(cancelled(rank)),
                _ => return Err(died(rank)),
            }
        }
        Ok(state)
    }

    /// Sends the error to all that have joined, and for a while to all that still come. Members of a parent see each
    /// other's state and need not come.
    pub(super) fn refuse_all(&mut self, error: &Error) {
        let mut refused = self.former;
        for (_, peer) in self.joined() {
            send_error(&peer.connection, error);
            refused += 1;
        }
        self.peers.iter_mut().for_each(|peer| *peer = None);
        let ranks = self.hello.ranks;
        let end = Instant::now() + LINGER;
        while refused + 1 < ranks && Instant::now() < end && !self.context.all_are_members(ranks) {
            match self.next_hello() {
                Ok(Some((connection, _))) => {
                    send_error(&connection, error);
                    refused += 1;
                }
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    /// Waits a little for an authenticated rank, or for a peer to end.
    fn next_hello(&mut self) -> Result<Option<(OwnedFd, Hello)>> {
        (self.context.check_cancelled)()?;
        let joined: Vec<usize> = self.joined().map(|(rank, _)| rank).collect();
        let peers = self.peers.iter().flatten().map(|peer| &peer.connection);
        let mut watched: Vec<PollFd<'_>> = std::iter::once(&self.listener)
            .chain(peers)
            .chain(&self.unauthenticated)
            .map(|file| PollFd::new(file, PollFlags::IN))
            .collect();
        wait(&mut watched, POLL_INTERVAL)?;
        let events: Vec<bool> = watched.iter().map(|file| !file.revents().is_empty()).collect();
        let (peers, unauthenticated) = events[1..].split_at(joined.len());
        // A peer sends nothing now but that it was cancelled; otherwise this is its end.
        if let Some(index) = peers.iter().position(|event| *event) {
            let rank = joined[index];
            self.former += 1;
            let message = self.peers[rank].take().and_then(|Peer { connection, .. }| {
                let mut message = [0; 8];
                recv(&connection, &mut message, RecvFlags::empty()).ok().filter(|(_, length)| *length > 0)
            });
            return Err(if message.is_some() { cancelled(rank) } else { died(rank) });
        }
        if let Some(index) = unauthenticated.iter().position(|event| *event) {
            let connection = self.unauthenticated.remove(index);
            return Ok(self.authenticate(&connection).map(|hello| (connection, hello)));
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

    fn joined(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.peers.iter().enumerate().filter_map(|(rank, peer)| Some((rank, peer.as_ref()?)))
    }
}

fn send_error(connection: &OwnedFd, error: &Error) {
    let text = &error.text.as_bytes()[..error.text.len().min(MAX_MESSAGE - 4)];
    let _ = send(connection, &[&error.code.0.to_ne_bytes(), text].concat(), SendFlags::NOSIGNAL);
}

fn died(rank: usize) -> Error {
    Error::remote(format!("rank {rank} died before all ranks had joined"))
}

fn cancelled(rank: usize) -> Error {
    Error::remote(format!("rank {rank} was cancelled or aborted before all ranks had joined"))
}

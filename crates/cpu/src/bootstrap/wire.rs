//! The sockets of a rendezvous and their messages.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libnccl::sys::ncclResult_t;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, UCred, recvmsg, sendmsg, socket_with,
};
use rustix::process::geteuid;

use crate::bootstrap::unique_id::MAGIC;
use crate::diag::error::{Error, Result};
use crate::shm::process::Process;

/// The shortest time between two checks for cancellation by a waiting rank. [`LONGEST_POLL`] is the longest.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(5);
const LONGEST_POLL: Duration = Duration::from_millis(100);

/// The time between two checks that the other ranks are alive, for cases in which the kernel does not report their death.
pub(super) const LIVENESS_INTERVAL: Duration = Duration::from_millis(200);

/// Flags of all sockets: nonblocking, so that no call blocks in the kernel indefinitely.
pub(super) const SOCKET_FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The maximum length of a message in bytes. The longest contain a result code and a text.
const MAX_MESSAGE: usize = 1024;

/// The bit of the result code that marks a [`Message::Left`].
const LEFT: u32 = 1 << 31;

#[derive(Debug)]
pub(super) enum Message {
    Hello(Hello),
    /// From the root, the first time, with the shared state's file: all ranks have joined. From the root, the second time: all
    /// have opened the state. From a process of peers: it has opened the state.
    Ready,
    Failed(Error),
    /// The rendezvous has failed because the sender was cancelled. The sender does not wait for ranks that join later.
    Left(Error),
}

/// The first message of a rank, or of a process whose call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) secret: [u8; 16],
    /// The number of ranks, or 0 if the call was refused. In that case, `rank` is 0 and the next message contains the error.
    pub(super) ranks: usize,
    pub(super) rank: usize,
    /// The [`Process::identity`] of the rank's process. The kernel reports the pid.
    pub(super) identity: u64,
}

impl Message {
    fn to_bytes(&self) -> Vec<u8> {
        let (mark, error) = match self {
            Self::Hello(hello) => return hello.to_bytes(),
            Self::Ready => return ncclResult_t::ncclSuccess.0.to_ne_bytes().to_vec(),
            Self::Failed(error) => (0, error),
            Self::Left(error) => (LEFT, error),
        };
        let text = &error.text.as_bytes()[..error.text.len().min(MAX_MESSAGE - 4)];
        [&(error.code.0 | mark).to_ne_bytes(), text].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(&MAGIC) {
            return Hello::from_bytes(bytes).map(Self::Hello);
        }
        let (number, text) = bytes.split_first_chunk()?;
        let number = u32::from_ne_bytes(*number);
        let code = ncclResult_t(number & !LEFT);
        let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
        let error = match code {
            ncclResult_t::ncclSuccess => return Some(Self::Ready),
            _ if code.0 >= ncclResult_t::ncclNumResults.0 || code == ncclResult_t::ncclInProgress => {
                Error::remote(format!("another rank sent result code {} at the rendezvous", code.0))
            }
            _ if text.trim().is_empty() => {
                Error { code, text: "another rank sent an error without a text at the rendezvous".into() }
            }
            _ => Error { code, text },
        };
        Some(if number == code.0 { Self::Failed(error) } else { Self::Left(error) })
    }
}

impl Hello {
    fn to_bytes(self) -> Vec<u8> {
        let (ranks, rank) = (self.ranks as u32, self.rank as u32);
        let numbers = [ranks.to_ne_bytes(), rank.to_ne_bytes()];
        [&MAGIC, &self.secret[..], numbers.as_flattened(), &self.identity.to_ne_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (secret, rest) = bytes.strip_prefix(&MAGIC)?.split_first_chunk()?;
        let (ranks, rest) = rest.split_first_chunk()?;
        let (rank, identity) = rest.split_first_chunk()?;
        let hello = Self {
            secret: *secret,
            ranks: u32::from_ne_bytes(*ranks) as usize,
            rank: u32::from_ne_bytes(*rank) as usize,
            identity: u64::from_ne_bytes(identity.try_into().ok()?),
        };
        (hello.rank < hello.ranks || (hello.ranks, hello.rank) == (0, 0)).then_some(hello)
    }
}

pub(super) fn cancelled(rank: usize) -> Error {
    Error::remote(format!("rank {rank} was cancelled or aborted before all ranks had joined"))
}

/// Returns the error for the other ranks after the call of `who` has failed with `error`.
pub(super) fn failed(who: &str, error: &Error) -> Error {
    Error::remote(format!("{who} failed before all ranks had joined: {}", error.text))
}

/// Returns the error about `who`, whose connection ended without a message because its process or its call has ended.
pub(super) fn gone(who: &str, process: Option<Process>) -> Error {
    let began = Instant::now();
    // The kernel closes the sockets of a process shortly before the process has ended.
    let ended = |process: Process| loop {
        if process.ended() || began.elapsed() >= LIVENESS_INTERVAL {
            return process.ended();
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    Error::remote(match process.map(ended) {
        Some(true) => format!("{who} exited before all ranks had joined: its process has ended"),
        Some(false) => {
            format!("{who} left before all ranks had joined: its process still runs, but its call has ended")
        }
        None => format!("{who} exited before all ranks had joined: its call or its process has ended"),
    })
}

pub(super) fn create_socket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET_FLAGS, None)
}

pub(super) fn send(socket: &OwnedFd, message: &Message) -> rustix::io::Result<usize> {
    rustix::net::send(socket, &message.to_bytes(), SendFlags::NOSIGNAL)
}

pub(super) fn send_file(socket: &OwnedFd, file: &OwnedFd) -> rustix::io::Result<usize> {
    let (files, bytes) = ([file.as_fd()], Message::Ready.to_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
}

pub(super) type Received = (Message, Option<OwnedFd>);

/// Receives a message that has arrived. Returns `None` if the connection has ended or the message is malformed.
pub(super) fn receive_now(socket: &OwnedFd) -> rustix::io::Result<Option<Received>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; MAX_MESSAGE];
    let mut receive =
        || recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
    // If the other end closed the connection with unread messages, Linux reports that before the last messages sent by it.
    let received = match retry_on_intr(&mut receive) {
        Err(Errno::CONNRESET) => retry_on_intr(&mut receive),
        received => received,
    }?;
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // This process has no file descriptor left.
        return Err(Errno::MFILE);
    }
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok(Message::from_bytes(&bytes[..received.bytes]).map(|message| (message, file)))
}

/// Waits for a message. Returns `None` if the connection or the peer's `process` has ended, or if the message is malformed.
pub(super) fn receive(
    socket: &OwnedFd,
    process: Option<Process>,
    check_cancelled: &dyn Fn() -> Result,
) -> Result<Option<Received>> {
    let began = Instant::now();
    let (mut checked, mut ended) = (began, false);
    loop {
        check_cancelled()?;
        let mut watched = [PollFd::new(socket, PollFlags::IN)];
        wait(&mut watched, poll_interval(began.elapsed()))?;
        // Not before poll reports an event: if a message and the end of the connection arrive simultaneously, a nonblocking
        // receive may return the end first (still true in Linux 6.18).
        if !watched[0].revents().is_empty() {
            match receive_now(socket) {
                Ok(received) => return Ok(received),
                Err(Errno::AGAIN) => {}
                Err(error @ Errno::MFILE) => {
                    return Err(Error::system("the ranks' shared memory cannot be received", error));
                }
                Err(error) => return Err(Error::system("receiving at the rendezvous failed", error)),
            }
        } else if ended {
            // All messages that the process had sent have been received.
            return Ok(None);
        }
        if checked.elapsed() >= LIVENESS_INTERVAL {
            checked = Instant::now();
            ended = process.is_some_and(|process| process.ended());
        }
    }
}

/// Returns how long a rank may wait for an event before it checks for cancellation, given the time `waited` so far.
pub(super) fn poll_interval(waited: Duration) -> Duration {
    (waited / 64).clamp(POLL_INTERVAL, LONGEST_POLL)
}

/// Waits for an event, for at most `longest`, which must be less than a second.
pub(super) fn wait(watched: &mut [PollFd<'_>], longest: Duration) -> Result {
    let timeout = Timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() };
    match poll(watched, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::system("the sockets of the rendezvous cannot be polled", error)),
    }
}

/// Pauses before another attempt. The other rank is usually ready immediately.
pub(super) fn pause(attempt: u32) {
    match attempt {
        0..20 => std::thread::yield_now(),
        20..100 => std::thread::sleep(Duration::from_micros(50)),
        _ => std::thread::sleep(Duration::from_millis(1)),
    }
}

fn credentials(connection: &OwnedFd) -> Result<UCred> {
    socket_peercred(connection).map_err(|error| Error::system("a rank's process cannot be determined", error))
}

pub(super) fn pid_of(connection: &OwnedFd) -> Result<u64> {
    Ok(credentials(connection)?.pid.as_raw_pid().unsigned_abs().into())
}

pub(super) fn is_same_user(connection: &OwnedFd) -> bool {
    credentials(connection).is_ok_and(|peer| peer.uid == geteuid())
}

#[cfg(test)]
#[path = "../../tests/unit/wire.rs"]
mod tests;

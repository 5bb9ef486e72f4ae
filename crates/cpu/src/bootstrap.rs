//! How ranks that have only an id in common come to share a world.
//!
//! They meet at a Unix socket named by the id. Whoever comes first hosts the meeting inside its own call: it
//! waits for the others, makes the world, and hands it over. Each rank keeps its connection until all have
//! the world, so a rank that dies before is noticed by the kernel, at once.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libnccl::sys::ncclResult_t;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, UCred, accept_with, bind,
    connect, listen, recv, recvmsg, send, sendmsg, socket_with,
};
use rustix::process::geteuid;

use crate::failure::{Failure, Result};
use crate::last_error;
use crate::process::Process;
use crate::unique_id::{MAGIC, UniqueId};
use crate::world::World;

/// How often a rank looks whether the host has come.
const RETRY: Duration = Duration::from_millis(1);

/// How long the host of a meeting that failed stays to tell those who come later.
const LINGER: Duration = Duration::from_millis(500);

/// Connections that have not yet said who they are, beyond those that the ranks may have.
const STRANGERS: usize = 64;

/// The longest message: a result code and a text.
const MESSAGE: usize = 1024;

/// The world of `ranks` ranks that were all given `id`, once all have come.
pub(crate) fn meet(id: &UniqueId, ranks: usize, rank: usize) -> Result<World> {
    let me = Process::current().map_err(|error| Failure::system("/proc/self/stat", error))?;
    if ranks == 1 {
        return Ok(World::create(&[me])?.0);
    }
    let name: String = id.public.iter().map(|byte| format!("{byte:02x}")).collect();
    let failed = |error| Failure::system("the ranks' meeting point cannot be reached", error);
    let address =
        SocketAddrUnix::new_abstract_name(format!("libnccl-cpu-{name}").as_bytes()).map_err(failed)?;
    loop {
        let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let first = socket().map_err(failed)?;
        match bind(&first, &address) {
            Ok(()) => {
                listen(&first, 128).map_err(failed)?;
                return Host::new(first, *id, ranks, rank).host(me);
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(failed(error)),
        }
        let second = socket().map_err(failed)?;
        match retry_on_intr(|| connect(&second, &address)) {
            Ok(()) => return join(&second, id, ranks, rank),
            // The host has not got to listening, or has gone.
            Err(Errno::CONNREFUSED) => std::thread::sleep(RETRY),
            Err(error) => return Err(failed(error)),
        }
    }
}

/// What a rank says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hello {
    secret: [u8; 16],
    ranks: usize,
    rank: usize,
}

impl Hello {
    const SIZE: usize = 8 + 16 + 4 + 4;

    fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.secret);
        bytes[24..28].copy_from_slice(&(self.ranks as u32).to_ne_bytes());
        bytes[28..].copy_from_slice(&(self.rank as u32).to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = bytes.try_into().ok()?;
        let number = |at: usize| Some(u32::from_ne_bytes(*bytes[at..].first_chunk()?) as usize);
        let hello = Self { secret: *bytes[8..].first_chunk()?, ranks: number(24)?, rank: number(28)? };
        (bytes[..8] == MAGIC && hello.rank < hello.ranks).then_some(hello)
    }
}

/// Comes to a meeting that another rank hosts.
fn join(host: &OwnedFd, id: &UniqueId, ranks: usize, rank: usize) -> Result<World> {
    if !same_user(host) {
        return Err(Failure::system("the ranks' meeting point is held by another user", Errno::ACCESS));
    }
    let hello = Hello { secret: id.secret, ranks, rank };
    // Whether the host is still there, its answer shows.
    let _ = send(host, &hello.to_bytes(), SendFlags::NOSIGNAL);
    let file = hear(host)?.ok_or_else(|| Failure::internal("the host of the meeting sent no memory"))?;
    let world = World::open(file, ranks)?;
    let _ = send(host, b"ready", SendFlags::NOSIGNAL);
    hear(host)?;
    Ok(world)
}

/// Waits for the host's next message: go on, perhaps with a file, or what went wrong.
fn hear(host: &OwnedFd) -> Result<Option<OwnedFd>> {
    let gone = || Failure::remote("the rank that hosted the meeting died before all ranks had joined");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; MESSAGE];
    let received = retry_on_intr(|| {
        recvmsg(host, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let length = match received {
        Ok(message) => message.bytes,
        Err(Errno::CONNRESET) => return Err(gone()),
        Err(error) => return Err(Failure::system("the host of the meeting cannot be heard", error)),
    };
    let (code, text) = bytes[..length].split_first_chunk().ok_or_else(gone)?;
    let code = ncclResult_t(u32::from_ne_bytes(*code));
    if code != ncclResult_t::ncclSuccess {
        return Err(Failure { code, text: String::from_utf8_lossy(text).into_owned() });
    }
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.next().and_then(|mut files| files.next()))
}

/// A meeting that this rank hosts.
struct Host {
    listener: OwnedFd,
    hello: Hello,
    /// The others that have come, by rank.
    members: Vec<Option<Member>>,
    strangers: Vec<OwnedFd>,
    /// Ranks that came and are no longer members.
    former: usize,
}

struct Member {
    connection: OwnedFd,
    process: Process,
}

impl Host {
    fn new(listener: OwnedFd, id: UniqueId, ranks: usize, rank: usize) -> Self {
        let hello = Hello { secret: id.secret, ranks, rank };
        Self { listener, hello, members: (0..ranks).map(|_| None).collect(), strangers: vec![], former: 0 }
    }

    fn host(mut self, me: Process) -> Result<World> {
        let result = self.gather().and_then(|()| self.hand_over(me));
        if let Err(failure) = &result {
            self.refuse(failure);
        }
        result
    }

    /// Waits until every other rank has come.
    fn gather(&mut self) -> Result {
        while self.members.iter().flatten().count() + 1 < self.hello.ranks {
            let Some((connection, hello)) = self.next(None)? else { continue };
            let Hello { ranks, rank, .. } = hello;
            let process = process_of(&connection)?;
            let failure = if ranks != self.hello.ranks {
                Some(format!(
                    "the ranks disagree on their number: rank {rank} says {ranks}, rank {} says {}",
                    self.hello.rank, self.hello.ranks
                ))
            } else if rank == self.hello.rank || self.members[rank].is_some() {
                Some(format!("two ranks say that they are rank {rank}"))
            } else {
                self.members[rank] = Some(Member { connection, process });
                continue;
            };
            let failure = Failure::usage(failure.unwrap_or_default());
            tell(&connection, &failure);
            self.former += 1;
            return Err(failure);
        }
        Ok(())
    }

    /// Makes the world and gives it to everyone.
    fn hand_over(&self, me: Process) -> Result<World> {
        let process = |member: &Option<Member>| member.as_ref().map_or(me, |member| member.process);
        let processes: Vec<Process> = self.members.iter().map(process).collect();
        let (world, file) = World::create(&processes)?;
        let go = ncclResult_t::ncclSuccess.0.to_ne_bytes();
        let files = [file.as_fd()];
        for member in self.members.iter().flatten() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&files));
            // Whether the rank is still there, its answer shows.
            let _ = sendmsg(&member.connection, &[IoSlice::new(&go)], &mut control, SendFlags::NOSIGNAL);
        }
        for (rank, member) in self.present() {
            let mut answer = [0; 8];
            let received = retry_on_intr(|| recv(&member.connection, &mut answer, RecvFlags::empty()));
            if !matches!(received, Ok((_, length)) if length > 0) {
                return Err(lost(rank));
            }
        }
        for member in self.members.iter().flatten() {
            let _ = send(&member.connection, &go, SendFlags::NOSIGNAL);
        }
        Ok(world)
    }

    /// Tells everyone who has come, and for a while everyone who comes, that the meeting failed.
    fn refuse(mut self, failure: &Failure) {
        let mut told = self.former;
        for (_, member) in self.present() {
            tell(&member.connection, failure);
            told += 1;
        }
        self.members.clear();
        let end = Instant::now() + LINGER;
        while told + 1 < self.hello.ranks && Instant::now() < end {
            match self.next(Some(end)) {
                Ok(Some((connection, _))) => {
                    tell(&connection, failure);
                    told += 1;
                }
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    /// Waits for someone to come who knows the secret, for a member to be lost, or until `end`.
    fn next(&mut self, end: Option<Instant>) -> Result<Option<(OwnedFd, Hello)>> {
        let failed = |error| Failure::system("the ranks' meeting cannot be watched", error);
        let present: Vec<usize> = self.present().map(|(rank, _)| rank).collect();
        let members = self.members.iter().flatten().map(|member| &member.connection);
        let mut watched: Vec<PollFd<'_>> = std::iter::once(&self.listener)
            .chain(members)
            .chain(&self.strangers)
            .map(|file| PollFd::new(file, PollFlags::IN))
            .collect();
        let timeout = end.map(|end| Timespec {
            tv_sec: 0,
            tv_nsec: end.saturating_duration_since(Instant::now()).subsec_nanos().into(),
        });
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
        let stirred: Vec<bool> = watched.iter().map(|file| !file.revents().is_empty()).collect();
        let (members, strangers) = stirred[1..].split_at(present.len());
        // A member has nothing to say now: this is its end.
        if let Some(index) = members.iter().position(|stirred| *stirred) {
            self.members[present[index]] = None;
            self.former += 1;
            return Err(lost(present[index]));
        }
        if let Some(index) = strangers.iter().position(|stirred| *stirred) {
            let stranger = self.strangers.remove(index);
            return Ok(self.listen_to(&stranger).map(|hello| (stranger, hello)));
        }
        if stirred[0] {
            match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(stranger) => self.strangers.push(stranger),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(failed(error)),
            }
            if self.strangers.len() > self.hello.ranks + STRANGERS {
                self.strangers.remove(0);
            }
        }
        Ok(None)
    }

    /// What a stranger says, if it is one of us.
    fn listen_to(&self, stranger: &OwnedFd) -> Option<Hello> {
        let mut bytes = [0; Hello::SIZE + 1];
        let length = recv(stranger, &mut bytes, RecvFlags::DONTWAIT).map_or(0, |(_, length)| length);
        let hello = Hello::from_bytes(&bytes[..length.min(bytes.len())]);
        let known = hello.filter(|hello| same_user(stranger) && hello.secret == self.hello.secret);
        if known.is_none() && last_error::warnings_wanted() {
            eprintln!("libnccl-cpu: a stranger came to the meeting of the ranks and was sent away");
        }
        known
    }

    fn present(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate().filter_map(|(rank, member)| Some((rank, member.as_ref()?)))
    }
}

fn tell(connection: &OwnedFd, failure: &Failure) {
    let text = &failure.text.as_bytes()[..failure.text.len().min(MESSAGE - 4)];
    let _ = send(connection, &[&failure.code.0.to_ne_bytes(), text].concat(), SendFlags::NOSIGNAL);
}

fn lost(rank: usize) -> Failure {
    Failure::remote(format!("rank {rank} died before all ranks had joined"))
}

fn credentials(peer: &OwnedFd) -> Result<UCred> {
    socket_peercred(peer).map_err(|error| Failure::system("a rank's process cannot be determined", error))
}

fn same_user(peer: &OwnedFd) -> bool {
    credentials(peer).is_ok_and(|peer| peer.uid == geteuid())
}

fn process_of(peer: &OwnedFd) -> Result<Process> {
    let pid = credentials(peer)?.pid.as_raw_pid();
    Process::of(pid.unsigned_abs().into())
        .map_err(|error| Failure::remote(format!("a rank died as it came: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_the_way_and_garbage_is_none() {
        let hello = Hello { secret: [7; 16], ranks: 3, rank: 2 };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::from_bytes(&bytes), Some(hello));
        assert_eq!(Hello::from_bytes(&bytes[1..]), None);
        assert_eq!(Hello::from_bytes(&[0; Hello::SIZE]), None);
        assert_eq!(Hello::from_bytes(&Hello { rank: 3, ..hello }.to_bytes()), None);
    }
}

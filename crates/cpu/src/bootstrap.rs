//! How ranks that have only an id in common come to share a world.
//!
//! They meet at a Unix socket named by the id. Whoever comes first hosts the meeting inside its own call: it
//! waits for the others, makes the world, and hands it over. Each rank keeps its connection until all have
//! the world, so a rank that dies before is noticed by the kernel, at once; and a little later where a process that
//! the rank has forked still has its end of it.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libnccl::sys::ncclResult_t;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, UCred, accept_with, bind,
    connect, listen, recv, recvmsg, send, sendmsg, socket_with,
};
use rustix::process::geteuid;

use crate::debug;
use crate::failure::{Failure, Result};
use crate::process::Process;
use crate::unique_id::{MAGIC, UniqueId};
use crate::watch::Watch;
use crate::world::{MAX_RANKS, World};

/// How long a rank waits at a time before it looks whether it is to go on.
const LOOK: Duration = Duration::from_millis(5);

/// How often a rank looks whether the others still live, and the host whether those who have not come still can.
const EXPECT: Duration = Duration::from_millis(50);

/// How long the host of a meeting that failed stays to tell those who come later.
const LINGER: Duration = Duration::from_millis(500);

/// Connections that have not yet said who they are, beyond those that the ranks may have.
const STRANGERS: usize = 64;

/// The longest message: a result code and a text.
const MESSAGE: usize = 1024;

/// What a rank says once it has the world, or if it gives up.
const READY: &[u8] = b"ready";
const ABORTED: &[u8] = b"aborted";

/// Nothing here waits in the kernel without an end.
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The world of `ranks` ranks that were all given `id`, once all have come.
pub(crate) fn meet(id: &UniqueId, ranks: usize, rank: usize, watch: &Watch<'_>) -> Result<World> {
    come(id, ranks, rank, watch).inspect_err(|failure| watch.stay_away(failure))
}

fn come(id: &UniqueId, ranks: usize, rank: usize, watch: &Watch<'_>) -> Result<World> {
    let me = Process::current().map_err(|error| Failure::system("/proc/self/stat", error))?;
    if ranks == 1 {
        return Ok(World::create(&[me])?.0);
    }
    let name: String = id.public.iter().map(|byte| format!("{byte:02x}")).collect();
    let failed = |error| Failure::system("the ranks' meeting point cannot be reached", error);
    let address =
        SocketAddrUnix::new_abstract_name(format!("libnccl-cpu-{name}").as_bytes()).map_err(failed)?;
    let hello = Hello { secret: id.secret, ranks, rank, started: me.started };
    for attempt in 0.. {
        let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None);
        let first = socket().map_err(failed)?;
        match bind(&first, &address) {
            Ok(()) => {
                listen(&first, MAX_RANKS as i32).map_err(failed)?;
                return Host::new(first, hello, watch).host(me);
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(failed(error)),
        }
        let second = socket().map_err(failed)?;
        match retry_on_intr(|| connect(&second, &address)) {
            Ok(()) => {
                let trouble = match join(&second, hello, watch) {
                    Ok(world) => return Ok(world),
                    Err(trouble) => trouble,
                };
                if watch.go_on().is_err() {
                    let _ = send(&second, ABORTED, SendFlags::NOSIGNAL);
                }
                return Err(match trouble {
                    Trouble::HostGone => pass_on(first, &address, hello, watch),
                    Trouble::Failed(failure) => failure,
                });
            }
            // The host has not got to listening, is overrun, or has gone.
            Err(Errno::CONNREFUSED | Errno::AGAIN) => {
                watch.go_on()?;
                pause(attempt);
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Err(Failure::internal("the ranks' meeting point was never reached"))
}

/// Why a rank that came to a meeting has no world.
enum Trouble {
    /// Without a word.
    HostGone,
    Failed(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Tells those who come later that the host has died, for they would wait for it and for this rank.
fn pass_on(listener: OwnedFd, address: &SocketAddrUnix, hello: Hello, watch: &Watch<'_>) -> Failure {
    let failure = Failure::remote("the rank that hosted the meeting died before all ranks had joined");
    // Ranks that know each other see it for themselves.
    let end = Instant::now() + if watch.knows(hello.ranks) { Duration::ZERO } else { LINGER };
    for attempt in (0..).take_while(|_| Instant::now() < end) {
        if bind(&listener, address).is_ok() {
            let _ = listen(&listener, MAX_RANKS as i32);
            Host::new(listener, hello, watch).refuse(&failure);
            break;
        }
        // Another one was faster: one who tells the same, or one who came late and waits.
        let Ok(other) = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None) else { break };
        if connect(&other, address).is_ok() && is_let_in(&other, hello) {
            let _ = send(&other, ABORTED, SendFlags::NOSIGNAL);
            break;
        }
        pause(attempt);
    }
    failure
}

/// Whether there is a host that hears this rank. The socket of one that has died may last a little longer.
fn is_let_in(host: &OwnedFd, hello: Hello) -> bool {
    let _ = send(host, &hello.to_bytes(), SendFlags::NOSIGNAL);
    for _ in 0..10 {
        let _ = wait(&mut [PollFd::new(host, PollFlags::IN)], LOOK);
        match recv(host, &mut [0; MESSAGE], RecvFlags::empty()) {
            Err(Errno::AGAIN) => {}
            received => return received.is_ok(),
        }
    }
    // It is there and waits.
    true
}

/// Lets the host get on, which most often takes no time.
fn pause(attempt: u32) {
    match attempt {
        0..20 => std::thread::yield_now(),
        20..100 => std::thread::sleep(Duration::from_micros(50)),
        _ => std::thread::sleep(Duration::from_millis(1)),
    }
}

/// What a rank says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hello {
    secret: [u8; 16],
    ranks: usize,
    rank: usize,
    /// When its process did; which one that is, the kernel says.
    started: u64,
}

impl Hello {
    const SIZE: usize = 8 + 16 + 4 + 4 + 8;

    fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.secret);
        bytes[24..28].copy_from_slice(&(self.ranks as u32).to_ne_bytes());
        bytes[28..32].copy_from_slice(&(self.rank as u32).to_ne_bytes());
        bytes[32..].copy_from_slice(&self.started.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = bytes.try_into().ok()?;
        let number = |at: usize| Some(u32::from_ne_bytes(*bytes[at..].first_chunk()?) as usize);
        let hello = Self {
            secret: *bytes[8..].first_chunk()?,
            ranks: number(24)?,
            rank: number(28)?,
            started: u64::from_ne_bytes(*bytes[32..].first_chunk()?),
        };
        (bytes[..8] == MAGIC && hello.rank < hello.ranks).then_some(hello)
    }
}

/// Comes to a meeting that another rank hosts.
fn join(host: &OwnedFd, hello: Hello, watch: &Watch<'_>) -> Result<World, Trouble> {
    if !same_user(host) {
        let failure = Failure::system("the ranks' meeting point is held by another user", Errno::ACCESS);
        return Err(failure.into());
    }
    // Whether the host is still there, its answer shows.
    let _ = send(host, &hello.to_bytes(), SendFlags::NOSIGNAL);
    let process = process_of(host)?;
    let file = hear(host, process, watch)?
        .ok_or_else(|| Failure::internal("the host of the meeting sent no memory"))?;
    let world = World::open(file, hello.ranks)?;
    let _ = send(host, READY, SendFlags::NOSIGNAL);
    // Others may have begun to use the world.
    hear(host, process, watch).inspect_err(|_| world.leave(hello.rank))?;
    Ok(world)
}

/// Waits for the host's next message: go on, perhaps with a file, or what went wrong.
fn hear(host: &OwnedFd, process: Option<Process>, watch: &Watch<'_>) -> Result<Option<OwnedFd>, Trouble> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; MESSAGE];
    let received = patiently(host, process, watch, || {
        recvmsg(host, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let length = match received? {
        Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
            // The kernel had no number left to give to the file.
            return Err(Failure::system("the ranks' shared memory cannot be received", Errno::MFILE).into());
        }
        Ok(message) => message.bytes,
        Err(Errno::CONNRESET) => return Err(Trouble::HostGone),
        Err(error) => return Err(Failure::system("the host of the meeting cannot be heard", error).into()),
    };
    let (code, text) = bytes[..length].split_first_chunk().ok_or(Trouble::HostGone)?;
    let code = ncclResult_t(u32::from_ne_bytes(*code));
    if code != ncclResult_t::ncclSuccess {
        if code.0 >= ncclResult_t::ncclNumResults.0 || code == ncclResult_t::ncclInProgress {
            let failure = Failure::remote(format!("the host of the meeting sent result code {}", code.0));
            return Err(failure.into());
        }
        let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
        let text =
            if text.trim().is_empty() { "the host of the meeting does not say what failed" } else { &text };
        return Err(Trouble::Failed(Failure { code, text: text.into() }));
    }
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.next().and_then(|mut files| files.next()))
}

/// Receives from `peer` once something comes; if its process ends instead, the connection has.
fn patiently<T>(
    peer: &OwnedFd,
    process: Option<Process>,
    watch: &Watch<'_>,
    mut receive: impl FnMut() -> rustix::io::Result<T>,
) -> Result<rustix::io::Result<T>> {
    let (mut looked, mut ended) = (Instant::now(), false);
    loop {
        watch.go_on()?;
        let mut watched = [PollFd::new(peer, PollFlags::IN)];
        wait(&mut watched, LOOK)?;
        // Not before there is something: where a message comes just then, and the end of the connection with it, the
        // kernel (Linux 6.18 still) may give the end first.
        if !watched[0].revents().is_empty() {
            match retry_on_intr(&mut receive) {
                Err(Errno::AGAIN) => {}
                received => return Ok(received),
            }
        } else if ended {
            // What it said before it ended has come first.
            return Ok(Err(Errno::CONNRESET));
        }
        if looked.elapsed() >= EXPECT {
            looked = Instant::now();
            ended = process.is_some_and(|process| process.ended());
        }
    }
}

/// Waits for something to happen, but no longer than `longest`.
fn wait(watched: &mut [PollFd<'_>], longest: Duration) -> Result {
    let timeout = Timespec { tv_sec: 0, tv_nsec: longest.min(LOOK).subsec_nanos().into() };
    match poll(watched, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Failure::system("the ranks' meeting cannot be watched", error)),
    }
}

/// A meeting that this rank hosts.
struct Host<'a> {
    listener: OwnedFd,
    hello: Hello,
    watch: &'a Watch<'a>,
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

impl<'a> Host<'a> {
    fn new(listener: OwnedFd, hello: Hello, watch: &'a Watch<'a>) -> Self {
        let members = (0..hello.ranks).map(|_| None).collect();
        Self { listener, hello, watch, members, strangers: vec![], former: 0 }
    }

    fn host(mut self, me: Process) -> Result<World> {
        let result = self.gather().and_then(|()| self.hand_over(me));
        if let Err(failure) = &result {
            match self.watch.go_on() {
                Ok(()) => self.refuse(failure),
                Err(_) => self.refuse(&gave_up(self.hello.rank)),
            }
        }
        result
    }

    /// Waits until every other rank has come.
    fn gather(&mut self) -> Result {
        let mut looked = Instant::now();
        while self.members.iter().flatten().count() + 1 < self.hello.ranks {
            if let Some((connection, hello)) = self.next()? {
                self.welcome(connection, hello)?;
            } else if looked.elapsed() >= EXPECT {
                looked = Instant::now();
                let ended = self.present().find(|(_, member)| member.process.ended()).map(|(rank, _)| rank);
                if let Some(rank) = ended {
                    self.former += 1;
                    self.members[rank] = None;
                    return Err(lost(rank));
                }
                let absent = |rank: &usize| *rank != self.hello.rank && self.members[*rank].is_none();
                (0..self.hello.ranks).filter(absent).try_for_each(|rank| self.watch.expect(rank))?;
            }
        }
        Ok(())
    }

    fn welcome(&mut self, connection: OwnedFd, hello: Hello) -> Result {
        let Hello { ranks, rank, started, .. } = hello;
        let failure = if ranks != self.hello.ranks {
            format!(
                "the ranks disagree on their number: rank {rank} says {ranks}, rank {} says {}",
                self.hello.rank, self.hello.ranks
            )
        } else if rank == self.hello.rank || self.members[rank].is_some() {
            format!("two ranks say that they are rank {rank}")
        } else {
            let pid = pid_of(&connection)?;
            self.members[rank] = Some(Member { connection, process: Process { pid, started } });
            return Ok(());
        };
        let failure = Failure::usage(failure);
        tell(&connection, &failure);
        self.former += 1;
        Err(failure)
    }

    /// Makes the world and gives it to everyone.
    fn hand_over(&self, me: Process) -> Result<World> {
        let process = |member: &Option<Member>| member.as_ref().map_or(me, |member| member.process);
        let processes: Vec<Process> = self.members.iter().map(process).collect();
        let (world, file) = World::create(&processes)?;
        let go = ncclResult_t::ncclSuccess.0.to_ne_bytes();
        let files = [file.as_fd()];
        for (_, member) in self.present() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&files));
            // Whether the rank is still there, its answer shows.
            let _ = sendmsg(&member.connection, &[IoSlice::new(&go)], &mut control, SendFlags::NOSIGNAL);
        }
        for (rank, Member { connection, process }) in self.present() {
            let mut answer = [0; 8];
            let received = patiently(connection, Some(*process), self.watch, || {
                recv(connection, &mut answer, RecvFlags::empty())
            })?;
            match received.map(|(_, length)| &answer[..length]) {
                Ok(READY) => {}
                Ok(ABORTED) => return Err(gave_up(rank)),
                _ => return Err(lost(rank)),
            }
        }
        for (_, member) in self.present() {
            let _ = send(&member.connection, &go, SendFlags::NOSIGNAL);
        }
        Ok(world)
    }

    /// Tells everyone who has come, and for a while everyone who comes, that the meeting failed. Ranks that know
    /// each other see it for themselves.
    fn refuse(&mut self, failure: &Failure) {
        let mut told = self.former;
        for (_, member) in self.present() {
            tell(&member.connection, failure);
            told += 1;
        }
        self.members.iter_mut().for_each(|member| *member = None);
        let end = Instant::now() + LINGER;
        while told + 1 < self.hello.ranks && Instant::now() < end && !self.watch.knows(self.hello.ranks) {
            match self.next() {
                Ok(Some((connection, _))) => {
                    tell(&connection, failure);
                    told += 1;
                }
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    /// Waits a little for someone to come who knows the secret, or for a member to be lost.
    fn next(&mut self) -> Result<Option<(OwnedFd, Hello)>> {
        self.watch.go_on()?;
        let present: Vec<usize> = self.present().map(|(rank, _)| rank).collect();
        let members = self.members.iter().flatten().map(|member| &member.connection);
        let mut watched: Vec<PollFd<'_>> = std::iter::once(&self.listener)
            .chain(members)
            .chain(&self.strangers)
            .map(|file| PollFd::new(file, PollFlags::IN))
            .collect();
        wait(&mut watched, LOOK)?;
        let stirred: Vec<bool> = watched.iter().map(|file| !file.revents().is_empty()).collect();
        let (members, strangers) = stirred[1..].split_at(present.len());
        // A member has nothing to say now: this is its end.
        if let Some(index) = members.iter().position(|stirred| *stirred) {
            let rank = present[index];
            self.former += 1;
            let said = self.members[rank].take().and_then(|Member { connection, .. }| {
                let mut said = [0; 8];
                recv(&connection, &mut said, RecvFlags::empty()).ok().filter(|(_, length)| *length > 0)
            });
            return Err(if said.is_some() { gave_up(rank) } else { lost(rank) });
        }
        if let Some(index) = strangers.iter().position(|stirred| *stirred) {
            let stranger = self.strangers.remove(index);
            return Ok(self.listen_to(&stranger).map(|hello| (stranger, hello)));
        }
        if stirred[0] {
            match accept_with(&self.listener, FLAGS) {
                Ok(stranger) => self.strangers.push(stranger),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => {}
                Err(error) => return Err(Failure::system("a rank cannot be let in", error)),
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
        if known.is_none() {
            debug::warn(|| "a stranger came to the meeting of the ranks and was sent away".into());
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

fn gave_up(rank: usize) -> Failure {
    Failure::remote(format!("rank {rank} gave up, or was aborted, before all ranks had joined"))
}

fn credentials(peer: &OwnedFd) -> Result<UCred> {
    socket_peercred(peer).map_err(|error| Failure::system("a rank's process cannot be determined", error))
}

fn pid_of(peer: &OwnedFd) -> Result<u64> {
    Ok(credentials(peer)?.pid.as_raw_pid().unsigned_abs().into())
}

/// The process at the other end, where that can be told.
fn process_of(peer: &OwnedFd) -> Result<Option<Process>, Trouble> {
    match Process::of(pid_of(peer)?) {
        Ok(process) => Ok(Some(process)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Trouble::HostGone),
        Err(_) => Ok(None),
    }
}

fn same_user(peer: &OwnedFd) -> bool {
    credentials(peer).is_ok_and(|peer| peer.uid == geteuid())
}

#[cfg(test)]
mod tests {
    use rustix::net::socketpair;

    use super::*;
    use crate::communicator::Communicator;
    use crate::options::Options;

    /// A host says its last word and ends the connection at once.
    #[test]
    fn the_last_word_is_heard_before_the_end() {
        let communicator = Communicator::new(0, Options::default());
        let watch = Watch::new(&communicator);
        for round in 0..5000 {
            let (host, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap();
            let heard = std::thread::scope(|scope| {
                scope.spawn(move || {
                    send(&other, &ncclResult_t::ncclSuccess.0.to_ne_bytes(), SendFlags::NOSIGNAL).unwrap();
                });
                hear(&host, None, &watch)
            });
            assert!(matches!(heard, Ok(None)), "round {round}");
        }
    }

    #[test]
    fn a_hello_survives_the_way_and_garbage_is_none() {
        let hello = Hello { secret: [7; 16], ranks: 3, rank: 2, started: 1 << 40 };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::from_bytes(&bytes), Some(hello));
        assert_eq!(Hello::from_bytes(&bytes[1..]), None);
        assert_eq!(Hello::from_bytes(&[0; Hello::SIZE]), None);
        assert_eq!(Hello::from_bytes(&Hello { rank: 3, ..hello }.to_bytes()), None);
    }

    /// Whatever a stranger says, it is nothing, or exactly a hello.
    #[test]
    fn what_is_not_a_hello_is_none() {
        let mut state = 1u64;
        let mut random = || {
            // A linear congruential generator, of which the high bits are good.
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as usize
        };
        let good = Hello { secret: [7; 16], ranks: 1024, rank: 1000, started: 77 }.to_bytes();
        let mut taken = 0;
        for _ in 0..200_000 {
            let mut bytes = good.to_vec();
            for _ in 0..=random() % 4 {
                let index = random() % bytes.len();
                bytes[index] ^= 1 << (random() % 8);
            }
            bytes.resize(if random() % 8 == 0 { random() % 80 } else { bytes.len() }, 0);
            if let Some(hello) = Hello::from_bytes(&bytes) {
                taken += 1;
                assert!(hello.rank < hello.ranks, "{hello:?}");
                assert_eq!(hello.to_bytes()[..], bytes, "{hello:?}");
            }
        }
        assert!(taken > 1000, "only {taken} were still good");
    }
}

//! Rank 0: one thread serves all connections with nonblocking reads.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::{LaunchError, Result, rank_failed};
use super::exchange::Exchange;
use super::job::Nonce;
use super::wire::{Hello, Message, NAMED, Peer};
use libnccl::UniqueId;

/// The time limit for receiving a complete hello.
const HELLO: Duration = Duration::from_secs(5);
/// The longest time during which rank 0 sends the outcome, including to ranks that join late.
pub(super) const TELL: Duration = Duration::from_secs(30);
/// The delay from the joining of the last rank to the acceptance of a reported failure, in a job without an id.
const DOUBT: Duration = Duration::from_secs(5);
/// The longest wait between two checks of the time limits.
const TICK: Duration = Duration::from_millis(20);

/// The maximum number of connections without a hello. Beyond it, the oldest is closed.
const MAX_UNIDENTIFIED: usize = 512;
/// The maximum number of connections that are accepted before existing connections are read.
const MAX_ACCEPTED: usize = 128;
/// The maximum number of joined ranks that the error at the deadline names.
const DESCRIBED: usize = 8;
/// The maximum number of distinct reasons that are kept: another process chooses the numbers in some of them.
const MAX_REASONS: usize = 16;

pub(super) struct Root<'a> {
    listener: &'a TcpListener,
    exchange: &'a Exchange<'a>,
    nonce: Nonce,
    /// The connections without a hello, each with the time when it was accepted. The oldest is first.
    unidentified: Vec<(Peer, Instant)>,
    joined: BTreeMap<u32, Joined>,
    /// The ranks that have received the outcome or exited.
    done: BTreeMap<u32, Nonce>,
    /// The ranks that joined, but timed out at their own deadlines.
    gone: BTreeSet<u32>,
    /// The time since which no rank has been missing.
    complete: Option<Instant>,
    /// The first rank that has failed, and the reason.
    failed: Option<(u32, String)>,
    refusals: Refusals,
}

struct Joined {
    peer: Peer,
    nonce: Nonce,
    until: Instant,
    stage: Stage,
    /// The reason, if this rank has failed.
    failure: Option<String>,
}

impl Joined {
    fn failed_or(&self, other: &str) -> String {
        self.failure.as_ref().map_or(other.into(), |reason| format!("failed: {reason}"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Waits,
    HasId,
    HasReported,
    HasOutcome,
}

impl<'a> Root<'a> {
    pub(super) fn new(listener: &'a TcpListener, exchange: &'a Exchange<'a>, nonce: Nonce) -> Self {
        Self {
            listener,
            exchange,
            nonce,
            unidentified: Vec::new(),
            joined: BTreeMap::new(),
            done: BTreeMap::new(),
            gone: BTreeSet::new(),
            complete: None,
            failed: None,
            refusals: Refusals::default(),
        }
    }

    /// Sends the id to all other ranks once all have joined, and returns the result of `begin` once all have begun.
    pub(super) fn exchange<T>(
        &mut self,
        id: &UniqueId,
        begin: impl FnOnce(&UniqueId) -> libnccl::Result<T>,
    ) -> Result<T> {
        self.wait(None)?;
        let message = Message::Id(*id);
        self.send(&message, Stage::HasId);
        let begun = begin(id).inspect_err(|error| self.tell(&Message::Failed(0, error.to_string())))?;
        self.wait(Some(&message))?;
        self.tell(&Message::Begun);
        Ok(begun)
    }

    /// Waits until all other ranks have joined. With an `id`, waits for their reports, and sends the id to ranks that join again.
    fn wait(&mut self, id: Option<&Message>) -> Result<()> {
        loop {
            self.look();
            if let Some(id) = id {
                self.send(id, Stage::HasId);
            }
            let is_late = self.exchange.deadline.has_passed();
            self.believe_failures(is_late);
            if let Some((rank, reason)) = self.failed.take() {
                self.tell(&Message::Failed(rank, reason.clone()));
                return Err(rank_failed(rank, reason));
            }
            let stage = if id.is_some() { Stage::HasReported } else { Stage::Waits };
            let is_sound = |joined: &Joined| joined.failure.is_none() && joined.stage >= stage;
            if self.joined.len() == self.others() && self.joined.values().all(is_sound) {
                return Ok(());
            }
            self.dismiss_impatient();
            if is_late {
                let slow = self.joined.iter().find(|(_, joined)| joined.stage == Stage::HasId);
                let Some((rank, _)) = slow else { return Err(self.fail()) };
                self.failed = Some((*rank, "it has the id, and has not begun".into()));
            }
            self.sleep();
        }
    }

    /// Fails the exchange if a rank has reported its failure.
    ///
    /// In a job without an id, any process can claim to be a rank that has not joined yet. Therefore, before the id is sent, a
    /// report counts only when all ranks have joined, and then only after [`DOUBT`] or at a deadline.
    fn believe_failures(&mut self, is_late: bool) {
        let now = Instant::now();
        self.complete = (self.joined.len() == self.others()).then(|| self.complete.unwrap_or(now));
        let waits = !is_late && self.joined.values().all(|joined| joined.until > now);
        let is_in_doubt = self.exchange.environment.is_open
            && self.complete.is_none_or(|since| waits && now.duration_since(since) < DOUBT);
        for (rank, joined) in &mut self.joined {
            if let Some(reason) = &joined.failure
                && !(is_in_doubt && joined.stage == Stage::Waits)
            {
                joined.stage = Stage::HasReported;
                self.failed.get_or_insert_with(|| (*rank, reason.clone()));
            }
        }
    }

    /// Sends the outcome to all other ranks and, for some time, to ranks that join late.
    pub(super) fn tell(&mut self, outcome: &Message) {
        let end = self.exchange.deadline.part(TELL);
        loop {
            self.look();
            self.send(outcome, Stage::HasOutcome);
            if self.done.len() == self.others() || end.has_passed() {
                return;
            }
            self.sleep();
        }
    }

    fn size(&self) -> u32 {
        self.exchange.environment.ranks.size
    }

    fn others(&self) -> usize {
        self.size() as usize - 1
    }

    /// Waits until there is something to read or a deadline passes, but at most for [`TICK`].
    fn sleep(&mut self) {
        let now = Instant::now();
        let waiting = self.joined.values().filter(|joined| joined.stage == Stage::Waits);
        let waits = waiting.map(|joined| joined.until - now).filter(|wait| !wait.is_zero());
        let limit = waits.chain([TICK, self.exchange.deadline.remaining()]).min().unwrap_or(TICK);
        let unidentified = self.unidentified.iter().map(|(peer, _)| &peer.stream);
        let streams = unidentified.chain(self.joined.values().map(|joined| &joined.peer.stream));
        let streams = streams.map(|stream| PollFd::new(stream, PollFlags::IN));
        let mut all: Vec<PollFd<'_>> = streams.chain([PollFd::new(self.listener, PollFlags::IN)]).collect();
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        // If poll fails, all connections are read after a tick.
        let is_watched =
            poll(&mut all, Some(&limit)).inspect_err(|_| self.exchange.deadline.sleep(TICK)).is_ok();
        let ready: Vec<bool> = all.iter().map(|file| !is_watched || !file.revents().is_empty()).collect();
        let unidentified = self.unidentified.iter_mut().map(|(peer, _)| peer);
        let peers = unidentified.chain(self.joined.values_mut().map(|joined| &mut joined.peer));
        peers.zip(ready).for_each(|(peer, is_ready)| peer.is_ready = is_ready);
    }

    fn look(&mut self) {
        self.accept();
        self.read_hellos();
        self.read_reports();
    }

    fn accept(&mut self) {
        for _ in 0..MAX_ACCEPTED {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
                        continue;
                    }
                    if self.unidentified.len() == MAX_UNIDENTIFIED {
                        self.close_oldest();
                    }
                    self.unidentified.push((Peer::new(stream, address), Instant::now()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Too many open files, or an already closed connection.
                Err(error) => {
                    self.refusals.add(error.to_string(), None);
                    self.close_oldest();
                    // The listener stays ready to accept.
                    return self.exchange.deadline.sleep(Duration::from_millis(5));
                }
            }
        }
    }

    fn close_oldest(&mut self) {
        if !self.unidentified.is_empty() {
            let (oldest, _) = self.unidentified.remove(0);
            self.refusals.add("too many connections without a hello".into(), Some(oldest.address));
        }
    }

    fn read_hellos(&mut self) {
        for (mut peer, since) in std::mem::take(&mut self.unidentified) {
            let problem = match peer.receive_if_ready() {
                Ok(Some(Message::Hello(hello))) => {
                    self.join(peer, hello);
                    continue;
                }
                Ok(None) if since.elapsed() < HELLO => {
                    self.unidentified.push((peer, since));
                    continue;
                }
                Ok(None) => "no whole hello in 5 s",
                Ok(Some(_)) => "a message that is no hello",
                Err(error) if error.kind() == ErrorKind::InvalidData => "a message that is no hello",
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    let reason = format!("this rank has {error}");
                    let _ = peer.send(&Message::Refused { is_final: true, reason });
                    self.refusals.add(format!("a rank of {error}"), Some(peer.address));
                    continue;
                }
                Err(_) => "closed without a hello",
            };
            self.refusals.add(problem.into(), Some(peer.address));
        }
    }

    fn join(&mut self, mut peer: Peer, hello: Hello) {
        let Hello { rank, size, nonce, .. } = hello;
        let expected = self.size();
        // A rank whose failure does not count yet may be replaced.
        let joined = self.joined.get(&rank).filter(|joined| joined.failure.is_none());
        let held = joined.map(|joined| joined.nonce).or(self.done.get(&rank).copied());
        // Finality of the refusal, the reason sent to the rank, and the reason in this rank's error.
        let refused = if hello.job != self.exchange.environment.hash() {
            Some((false, "it is of another job".into(), "a rank of another job".into()))
        } else if hello.root_nonce != self.nonce {
            Some((false, "it is in another exchange".into(), "a rank that has read an old address".into()))
        } else if size != expected {
            let reason = format!("this is rank {rank} of {size}; rank 0 expects {expected} ranks");
            Some((true, reason, format!("rank {rank} of {size}; expected {expected} ranks")))
        } else if rank == 0 || rank >= expected {
            let problem = format!("rank {rank} of {size}");
            Some((false, format!("it does not accept {problem}"), problem))
        } else if held.is_some_and(|held| held != nonce) {
            let reason = format!("another process has joined as rank {rank}");
            Some((false, reason, format!("a second process with rank {rank}")))
        } else {
            None
        };
        if let Some((is_final, reason, problem)) = refused {
            let _ = peer.send(&Message::Refused { is_final, reason });
            self.refusals.add(problem, Some(peer.address));
        } else if peer.send(&Message::Accepted).is_ok() {
            self.done.remove(&rank);
            self.gone.remove(&rank);
            let own = &self.exchange.name;
            let failure = (!own.fits(&hello.name)).then(|| {
                format!(
                    "it creates {}, and rank 0 creates {own}: all ranks have to create their communicators in the same order",
                    hello.name
                )
            });
            let (until, stage) = (Instant::now() + hello.wait, Stage::Waits);
            self.joined.insert(rank, Joined { peer, nonce, until, stage, failure });
        }
    }

    /// Reads the reports of the ranks, and removes ranks that have closed their connections.
    fn read_reports(&mut self) {
        let (done, failed, refusals) = (&mut self.done, &mut self.failed, &mut self.refusals);
        self.joined.retain(|rank, joined| {
            let problem = match (joined.stage, joined.peer.receive_if_ready()) {
                // A report that was sent before the rank received the outcome.
                (_, Ok(None)) | (Stage::HasOutcome, Ok(Some(_))) => return true,
                (Stage::HasId, Ok(Some(Message::Begun))) => {
                    joined.stage = Stage::HasReported;
                    return true;
                }
                (Stage::Waits | Stage::HasId, Ok(Some(Message::Failed(_, reason)))) => {
                    joined.failure = Some(reason);
                    return true;
                }
                (Stage::HasOutcome, Err(_)) => {
                    done.insert(*rank, joined.nonce);
                    return false;
                }
                (_, Ok(Some(_))) => "sent what is no report",
                (_, Err(error)) if error.kind() == ErrorKind::InvalidData => "sent what is no report",
                // At the end of the stream, the rank has read the id. If it has not, the connection is reset, and the rank joins
                // again.
                (stage, Err(error))
                    if stage == Stage::HasReported
                        || stage == Stage::HasId && error.kind() == ErrorKind::UnexpectedEof =>
                {
                    done.insert(*rank, joined.nonce);
                    failed.get_or_insert((*rank, "it has ended before all ranks had begun".into()));
                    return false;
                }
                (_, Err(_)) => "joined and left",
            };
            refusals.add(format!("rank {rank} {}", joined.failed_or(problem)), Some(joined.peer.address));
            false
        });
    }

    /// Sends the list of missing ranks to the ranks whose deadlines have passed, and closes their connections. The others
    /// continue to wait: any process that reaches the port can claim a short deadline.
    fn dismiss_impatient(&mut self) {
        let now = Instant::now();
        let is_impatient = |joined: &Joined| joined.stage == Stage::Waits && joined.until <= now;
        if !self.joined.values().any(is_impatient) {
            return;
        }
        let (ranks, count) = self.missing();
        let message = Message::Missing(ranks, count);
        let (gone, refusals) = (&mut self.gone, &mut self.refusals);
        self.joined.retain(|rank, joined| {
            if is_impatient(joined) {
                let _ = joined.peer.send(&message);
                let problem = joined.failed_or("waited no longer");
                refusals.add(format!("rank {rank} {problem}"), Some(joined.peer.address));
                gone.insert(*rank);
                return false;
            }
            true
        });
    }

    /// Returns the first missing ranks, and the number of all missing ranks.
    fn missing(&self) -> (Vec<u32>, u32) {
        let missing = (1..self.size()).filter(|rank| !self.joined.contains_key(rank));
        // If other ranks never joined, the ranks that waited for them are not at fault.
        let (gone, absent): (Vec<u32>, Vec<u32>) = missing.partition(|rank| self.gone.contains(rank));
        let blamed = if absent.is_empty() { gone } else { absent };
        (blamed.iter().take(NAMED).copied().collect(), blamed.len() as u32)
    }

    /// Sends a message to the joined ranks that have not reached `stage`, and advances them to `stage`.
    fn send(&mut self, message: &Message, stage: Stage) {
        for joined in self.joined.values_mut().filter(|joined| joined.stage < stage) {
            // If the connection is broken, the next read fails.
            if joined.peer.send(message).is_ok() {
                joined.stage = stage;
            }
        }
    }

    /// Sends the list of missing ranks to the joined ranks, and returns the error.
    fn fail(&mut self) -> LaunchError {
        let (ranks, count) = self.missing();
        let message = Message::Missing(ranks.clone(), count);
        for joined in self.joined.values_mut() {
            let _ = joined.peer.send(&message);
        }
        self.exchange.missing_ranks(&ranks, count, self.detail())
    }

    fn detail(&self) -> String {
        let listened = self.listener.local_addr().map(|address| format!("rank 0 listened at {address}"));
        let came = |(rank, joined): (&u32, &Joined)| {
            let from = joined.peer.address.ip().to_canonical();
            format!("rank {rank} {}", joined.failed_or(&format!("came from {from}")))
        };
        let mut parts: Vec<String> = listened.into_iter().collect();
        parts.extend(self.joined.iter().take(DESCRIBED).map(came));
        match self.joined.len() {
            0 => parts.push("no other rank came".into()),
            count if count > DESCRIBED => parts.push(format!("{} more came", count - DESCRIBED)),
            _ => {}
        }
        parts.extend(self.refusals.texts());
        parts.join("; ")
    }
}

/// The reasons for refused connections, each with its count and the first address.
#[derive(Default)]
struct Refusals(Vec<(String, usize, Option<SocketAddr>)>);

impl Refusals {
    fn add(&mut self, reason: String, address: Option<SocketAddr>) {
        match address {
            Some(address) => log::warn!("exchange of the unique id: refused {address}: {reason}"),
            None => log::warn!("exchange of the unique id: {reason}"),
        }
        if let Some((_, count, _)) = self.0.iter_mut().find(|(known, ..)| *known == reason) {
            *count += 1;
        } else if self.0.len() < MAX_REASONS {
            self.0.push((reason, 1, address));
        }
    }

    fn texts(&self) -> impl Iterator<Item = String> {
        self.0.iter().enumerate().map(|(i, (reason, count, address))| {
            let start = if i == 0 { "refused: " } else { "" };
            match (address, count) {
                (Some(address), 1) => format!("{start}{reason} ({address})"),
                (Some(address), _) => format!("{start}{reason} ({count} times, first {address})"),
                (None, _) => format!("{start}{reason} ({count} times)"),
            }
        })
    }
}

//! Rank 0: one thread for all connections, none of which is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::deadline::Deadline;
use super::error::LaunchError;
use super::job::{Job, Nonce};
use super::wire::{Hello, NAMED, Refusal, Reply, is_retry};
use libnccl::UniqueId;

/// The time for a hello.
const HELLO: Duration = Duration::from_secs(5);

/// Connections that have not said hello yet. Beyond, the oldest is closed.
const MAX_UNIDENTIFIED: usize = 512;

/// The ranks that have come of which the error at the deadline says from where.
const DESCRIBED: usize = 8;

/// Connections accepted in a row before the others are looked at.
const MAX_ACCEPTED: usize = 128;

/// Sends the id to all other ranks, once all have joined.
pub(super) fn send_id(
    listener: &TcpListener,
    job: &Job,
    nonce: Nonce,
    id: &UniqueId,
    deadline: Deadline,
) -> Result<(), LaunchError> {
    let mut root = Root {
        listener,
        job,
        nonce,
        deadline,
        unidentified: Vec::new(),
        joined: BTreeMap::new(),
        done: BTreeMap::new(),
        gone: BTreeSet::new(),
        refusals: Refusals::default(),
        is_sending: false,
    };
    let others = job.size as usize - 1;
    let mut pause = SHORTEST_PAUSE;
    loop {
        let mut progress = root.accept();
        progress |= root.read_hellos();
        progress |= root.look_at_joined();
        if root.joined.len() + root.done.len() == others && !root.is_sending {
            root.is_sending = true;
            progress = true;
        }
        if root.is_sending {
            progress |= root.send(&Reply::Id(*id));
            if root.done.len() == others {
                return Ok(());
            }
        } else {
            root.answer_impatient();
        }
        if root.deadline.has_passed() {
            return Err(root.fail());
        }
        // Each look at a connection is a system call.
        let longest = Duration::from_millis(2).max(Duration::from_micros(20) * job.size);
        pause = if progress { SHORTEST_PAUSE } else { (pause * 2).min(longest) };
        root.deadline.sleep(pause);
    }
}

const SHORTEST_PAUSE: Duration = Duration::from_micros(50);

struct Root<'a> {
    listener: &'a TcpListener,
    job: &'a Job,
    nonce: Nonce,
    deadline: Deadline,
    unidentified: Vec<Unidentified>,
    joined: BTreeMap<u32, Joined>,
    /// The ranks that have read the id.
    done: BTreeMap<u32, Nonce>,
    /// The ranks that joined, and were answered when they would wait no longer.
    gone: BTreeSet<u32>,
    refusals: Refusals,
    is_sending: bool,
}

/// A connection that has not said hello yet.
struct Unidentified {
    stream: TcpStream,
    address: SocketAddr,
    since: Instant,
    bytes: [u8; Hello::BYTES],
    count: usize,
}

struct Joined {
    stream: TcpStream,
    nonce: Nonce,
    /// The time until which it waits.
    until: Instant,
    has_id: bool,
}

impl Root<'_> {
    /// Accepts new connections, and returns `true` if there was one.
    fn accept(&mut self) -> bool {
        for accepted in 0..MAX_ACCEPTED {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    // The replies fit into the socket's buffer, so that a nonblocking write is complete.
                    if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
                        continue;
                    }
                    if self.unidentified.len() == MAX_UNIDENTIFIED {
                        self.close_oldest();
                    }
                    let (since, bytes) = (Instant::now(), [0; Hello::BYTES]);
                    self.unidentified.push(Unidentified { stream, address, since, bytes, count: 0 });
                }
                Err(error) if is_retry(&error) => return accepted > 0,
                // Too many open files, or a connection that is gone already.
                Err(error) => {
                    self.refusals.add(error.to_string(), None);
                    self.close_oldest();
                    return false;
                }
            }
        }
        true
    }

    fn close_oldest(&mut self) {
        if !self.unidentified.is_empty() {
            let oldest = self.unidentified.remove(0);
            self.refusals.add("too many connections without a hello".into(), Some(oldest.address));
        }
    }

    /// Reads of each connection what is there, and returns `true` if there was a whole hello.
    fn read_hellos(&mut self) -> bool {
        let mut progress = false;
        for mut connection in std::mem::take(&mut self.unidentified) {
            let read = loop {
                match connection.stream.read(&mut connection.bytes[connection.count..]) {
                    Ok(0) => break Err("closed without a hello"),
                    Ok(count) if connection.count + count == Hello::BYTES => break Ok(true),
                    Ok(count) => connection.count += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if is_retry(&error) && connection.since.elapsed() < HELLO => break Ok(false),
                    Err(error) if is_retry(&error) => break Err("no whole hello in 5 s"),
                    Err(_) => break Err("closed without a hello"),
                }
            };
            match (read, Hello::parse(&connection.bytes)) {
                (Ok(false), _) => self.unidentified.push(connection),
                (Ok(true), Some(hello)) => {
                    progress = true;
                    self.join(connection, hello);
                }
                (Ok(true), None) => {
                    self.refusals.add("a message that is no hello".into(), Some(connection.address));
                }
                (Err(problem), _) => self.refusals.add(problem.into(), Some(connection.address)),
            }
        }
        progress
    }

    /// Lets a rank join, or refuses it.
    fn join(&mut self, connection: Unidentified, hello: Hello) {
        let Unidentified { mut stream, address, .. } = connection;
        let Hello { rank, nonce, .. } = hello;
        let held = self.joined.get(&rank).map(|joined| joined.nonce).or(self.done.get(&rank).copied());
        let refused = if hello.job != self.job.hash {
            Some((Refusal::OtherJob, "a rank of another job".into()))
        } else if hello.root_nonce != self.nonce {
            Some((Refusal::OtherExchange, "a rank that has read an old address".into()))
        } else if hello.size != self.job.size {
            let problem = format!("rank {rank} of {}; expected {} ranks", hello.size, self.job.size);
            Some((Refusal::OtherSize(self.job.size), problem))
        } else if rank == 0 || rank >= self.job.size {
            Some((Refusal::RankOutOfRange, format!("rank {rank} of {}", hello.size)))
        } else if held.is_some_and(|held| held != nonce) {
            Some((Refusal::AlreadyJoined, format!("a second process with rank {rank}")))
        } else {
            None
        };
        if let Some((refusal, problem)) = refused {
            let _ = stream.write(&Reply::Refused(refusal).to_bytes(&nonce));
            self.refusals.add(problem, Some(address));
        } else if is_written(&mut stream, &Reply::Accepted.to_bytes(&nonce)) {
            self.done.remove(&rank);
            self.gone.remove(&rank);
            self.joined
                .insert(rank, Joined { stream, nonce, until: Instant::now() + hello.wait, has_id: false });
        }
    }

    /// Forgets ranks that are gone, and notes those that have closed after they were sent the id.
    fn look_at_joined(&mut self) -> bool {
        let before = self.joined.len();
        let (done, refusals) = (&mut self.done, &mut self.refusals);
        self.joined.retain(|rank, joined| match joined.stream.read(&mut [0]) {
            Err(error) if is_retry(&error) => true,
            // An end of the stream means that the rank has read all; if it has not, it is a reset.
            Ok(0) if joined.has_id => {
                done.insert(*rank, joined.nonce);
                false
            }
            Ok(0) | Err(_) => {
                refusals.add(format!("rank {rank} joined and left"), joined.stream.peer_addr().ok());
                false
            }
            Ok(_) => {
                refusals.add(format!("rank {rank} sent more than a hello"), joined.stream.peer_addr().ok());
                false
            }
        });
        self.joined.len() != before
    }

    /// Tells the ranks that will wait no longer which ones are missing. It is the end of their connections alone: whoever
    /// reaches the port may say so.
    fn answer_impatient(&mut self) {
        let now = Instant::now();
        let is_impatient = |joined: &Joined| !joined.has_id && joined.until <= now;
        if !self.joined.values().any(is_impatient) {
            return;
        }
        let (ranks, count) = self.missing();
        let reply = Reply::Missing(ranks, count);
        let (gone, refusals) = (&mut self.gone, &mut self.refusals);
        self.joined.retain(|rank, joined| {
            if is_impatient(joined) {
                let _ = joined.stream.write(&reply.to_bytes(&joined.nonce));
                refusals.add(format!("rank {rank} waited no longer"), joined.stream.peer_addr().ok());
                gone.insert(*rank);
                return false;
            }
            true
        });
    }

    /// Returns the first of the missing ranks, and their number.
    fn missing(&self) -> (Vec<u32>, u32) {
        let is_missing = |rank: &u32| match self.joined.get(rank) {
            Some(joined) => joined.has_id,
            None => !self.done.contains_key(rank),
        };
        let missing = || (1..self.job.size).filter(is_missing);
        // Where others never came, those who have waited for them are not to blame.
        let has_others = missing().any(|rank| !self.gone.contains(&rank));
        let (mut ranks, mut count) = (Vec::new(), 0_u32);
        for rank in missing().filter(|rank| !has_others || !self.gone.contains(rank)) {
            count += 1;
            if ranks.len() < NAMED {
                ranks.push(rank);
            }
        }
        (ranks, count)
    }

    /// Sends the id to the joined ranks that have not been sent it.
    fn send(&mut self, id: &Reply) -> bool {
        let mut progress = false;
        for joined in self.joined.values_mut().filter(|joined| !joined.has_id) {
            // If it is not written, the connection is broken, which the next look at it finds.
            joined.has_id = is_written(&mut joined.stream, &id.to_bytes(&joined.nonce));
            progress = true;
        }
        progress
    }

    /// Tells the joined ranks which ones are missing, and returns the error.
    fn fail(mut self) -> LaunchError {
        let (ranks, count) = self.missing();
        let reply = Reply::Missing(ranks.clone(), count);
        for joined in self.joined.values_mut().filter(|joined| !joined.has_id) {
            let _ = joined.stream.write(&reply.to_bytes(&joined.nonce));
        }
        missing_ranks(&ranks, count, self.job, &self.deadline, self.detail())
    }

    /// Says where this rank has listened, who has come, and who was refused.
    fn detail(&self) -> String {
        let listened = self.listener.local_addr().map(|address| format!("rank 0 listened at {address}"));
        let came = |(rank, joined): (&u32, &Joined)| match joined.stream.peer_addr() {
            Ok(address) => format!("rank {rank} came from {}", address.ip().to_canonical()),
            Err(_) => format!("rank {rank} came"),
        };
        let mut parts: Vec<String> = listened.into_iter().collect();
        parts.extend(self.joined.iter().take(DESCRIBED).map(came));
        match self.joined.len() {
            0 => parts.push("no other rank came".into()),
            count if count > DESCRIBED => parts.push(format!("{} more came", count - DESCRIBED)),
            _ => {}
        }
        parts.extend(Some(self.refusals.to_string()).filter(|refusals| !refusals.is_empty()));
        parts.join("; ")
    }
}

/// Creates a [`LaunchError::MissingRanks`].
pub(super) fn missing_ranks(
    ranks: &[u32],
    missing: u32,
    job: &Job,
    deadline: &Deadline,
    detail: impl Into<Box<str>>,
) -> LaunchError {
    LaunchError::MissingRanks {
        ranks: ranks.iter().map(|rank| *rank as usize).collect(),
        missing: missing as usize,
        size: job.size as usize,
        elapsed: deadline.elapsed(),
        detail: detail.into(),
    }
}

fn is_written(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    stream.write(bytes).is_ok_and(|count| count == bytes.len())
}

/// Reasons that are kept; some contain numbers of the other side.
const MAX_REASONS: usize = 16;

/// The connections that were refused, by reason.
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
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (reason, count, address)) in self.0.iter().enumerate() {
            write!(f, "{}{reason}", if i == 0 { "refused: " } else { "; " })?;
            match (address, count) {
                (Some(address), 1) => write!(f, " ({address})")?,
                (Some(address), _) => write!(f, " ({count} times, first {address})")?,
                (None, _) => write!(f, " ({count} times)")?,
            }
        }
        Ok(())
    }
}

//! Rank 0: one thread for all connections, none of which is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::deadline::Deadline;
use super::error::LaunchError;
use super::job::{Job, Nonce};
use super::wire::{Hello, NAMED, Refusal, Reply, Report, is_retry};
use libnccl::UniqueId;

/// The time for a hello.
const HELLO: Duration = Duration::from_secs(5);

/// Connections that have not said hello yet. Beyond, the oldest is closed.
const MAX_UNIDENTIFIED: usize = 512;

/// The ranks that have come of which the error at the deadline says from where.
const DESCRIBED: usize = 8;

/// Connections accepted in a row before the others are looked at.
const MAX_ACCEPTED: usize = 128;

/// The time in which the others are told that a rank has failed, those too that have not come yet.
pub(super) const TELL: Duration = Duration::from_secs(30);

/// The time in an open job, once no other rank is missing, in which a rank may come that is reported to have failed.
const DOUBT: Duration = Duration::from_secs(5);

const SHORTEST_PAUSE: Duration = Duration::from_micros(50);

/// Rank 0 of an exchange.
pub(super) struct Root<'a> {
    listener: &'a TcpListener,
    job: &'a Job,
    nonce: Nonce,
    deadline: Deadline,
    unidentified: Vec<Unidentified>,
    joined: BTreeMap<u32, Joined>,
    /// The ranks that need not be told anything more.
    done: BTreeMap<u32, Nonce>,
    /// The ranks that joined, and were answered when they would wait no longer.
    gone: BTreeSet<u32>,
    /// The time since which no rank is missing.
    complete: Option<Instant>,
    /// The first rank that has failed, and the reason. It is the end of all.
    failed: Option<(u32, String)>,
    refusals: Refusals,
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
    stage: Stage,
    /// The part of a report that has come.
    report: Vec<u8>,
    /// The reason for which it has failed, by its report.
    failure: Option<String>,
}

impl Joined {
    /// Returns that it has failed and why, or else `other`.
    fn failed_or(&self, other: &str) -> String {
        self.failure.as_ref().map_or(other.into(), |reason| format!("failed: {reason}"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Waits,
    HasId,
    HasReported,
    KnowsOutcome,
}

impl<'a> Root<'a> {
    pub(super) fn new(listener: &'a TcpListener, job: &'a Job, nonce: Nonce, deadline: Deadline) -> Self {
        Self {
            listener,
            job,
            nonce,
            deadline,
            unidentified: Vec::new(),
            joined: BTreeMap::new(),
            done: BTreeMap::new(),
            gone: BTreeSet::new(),
            complete: None,
            failed: None,
            refusals: Refusals::default(),
        }
    }

    /// Sends the id to all other ranks, once all have joined, and returns what `begin` makes of it here, once all have begun.
    pub(super) fn exchange<T>(
        &mut self,
        id: &UniqueId,
        begin: impl FnOnce(&UniqueId) -> libnccl::Result<T>,
    ) -> Result<T, LaunchError> {
        self.wait(None, |_| true)?;
        let reply = Reply::Id(*id);
        self.send(&reply, Stage::HasId);
        let begun = begin(id).inspect_err(|error| self.tell_failure(error.to_string()))?;
        self.wait(Some(&reply), |joined| joined.stage == Stage::HasReported)?;
        self.tell(&Reply::Begun);
        Ok(begun)
    }

    /// Tells all other ranks why this one has failed.
    pub(super) fn tell_failure(&mut self, reason: String) {
        self.tell(&Reply::Failed(0, reason));
    }

    /// Waits until all other ranks have come so far; those that wait for the `id` get it meanwhile.
    fn wait(&mut self, id: Option<&Reply>, is_so_far: impl Fn(&Joined) -> bool) -> Result<(), LaunchError> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            let mut progress = self.look();
            progress |= id.is_some_and(|id| self.send(id, Stage::HasId));
            let is_late = self.deadline.has_passed();
            self.believe_failures(is_late);
            if let Some((rank, reason)) = self.failed.take() {
                self.tell(&Reply::Failed(rank, reason.clone()));
                return Err(rank_failed(rank, reason));
            }
            let is_sound = |joined: &Joined| joined.failure.is_none() && is_so_far(joined);
            if self.joined.len() == self.others() && self.joined.values().all(is_sound) {
                return Ok(());
            }
            self.answer_impatient();
            if is_late {
                let slow = self.joined.iter().find(|(_, joined)| joined.stage == Stage::HasId);
                let Some((rank, _)) = slow else { return Err(self.fail()) };
                self.failed = Some((*rank, "it has the id, and has not begun".into()));
            }
            pause = self.next_pause(pause, progress);
            self.deadline.sleep(pause);
        }
    }

    /// Takes the report of a rank that has failed as the end. In an open job anybody can report it in the place of a rank that
    /// still comes, so before the id it counts only once no other rank has been missing for some time, or one waits no longer.
    fn believe_failures(&mut self, is_late: bool) {
        let now = Instant::now();
        self.complete = (self.joined.len() == self.others()).then(|| self.complete.unwrap_or(now));
        let waits = !is_late && self.joined.values().all(|joined| joined.until > now);
        let is_in_doubt =
            self.job.is_open && self.complete.is_none_or(|since| waits && now.duration_since(since) < DOUBT);
        for (rank, joined) in &mut self.joined {
            if let Some(reason) = &joined.failure
                && !(is_in_doubt && joined.stage == Stage::Waits)
            {
                joined.stage = Stage::HasReported;
                self.failed.get_or_insert_with(|| (*rank, reason.clone()));
            }
        }
    }

    /// Tells all other ranks the outcome, for some time also those that come only now.
    fn tell(&mut self, outcome: &Reply) {
        let end = self.deadline.part(TELL);
        let mut pause = SHORTEST_PAUSE;
        loop {
            let mut progress = self.look();
            progress |= self.send(outcome, Stage::KnowsOutcome);
            if self.done.len() == self.others() || end.has_passed() {
                return;
            }
            pause = self.next_pause(pause, progress);
            end.sleep(pause);
        }
    }

    fn others(&self) -> usize {
        self.job.size as usize - 1
    }

    /// Looks at all connections, and returns `true` if there was anything new.
    fn look(&mut self) -> bool {
        let mut progress = self.accept();
        progress |= self.read_hellos();
        progress | self.look_at_joined()
    }

    fn next_pause(&self, pause: Duration, progress: bool) -> Duration {
        // Each look at a connection is a system call.
        let longest = Duration::from_millis(2).max(Duration::from_micros(20) * self.job.size);
        if progress { SHORTEST_PAUSE } else { (pause * 2).min(longest) }
    }

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
        // Whoever has only reported a failure that does not count yet holds no place.
        let joined = self.joined.get(&rank).filter(|joined| joined.failure.is_none());
        let held = joined.map(|joined| joined.nonce).or(self.done.get(&rank).copied());
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
            let (until, stage, report) = (Instant::now() + hello.wait, Stage::Waits, Vec::new());
            let own = &self.job.name;
            let failure = (!own.fits(&hello.name)).then(|| {
                format!(
                    "it creates {}, and rank 0 creates {own}: all ranks have to create their communicators in the same order",
                    hello.name
                )
            });
            self.joined.insert(rank, Joined { stream, nonce, until, stage, report, failure });
        }
    }

    /// Reads the reports of the ranks, and forgets those that are gone.
    fn look_at_joined(&mut self) -> bool {
        let (mut progress, mut bytes) = (false, [0; Report::BYTES]);
        let (done, failed, refusals) = (&mut self.done, &mut self.failed, &mut self.refusals);
        self.joined.retain(|rank, joined| {
            let read = joined.stream.read(&mut bytes);
            if read.as_ref().is_err_and(is_retry) {
                return true;
            }
            progress = true;
            let problem = match read {
                Ok(0) | Err(_) if joined.stage == Stage::KnowsOutcome => {
                    done.insert(*rank, joined.nonce);
                    return false;
                }
                // An end of the stream means that the rank has read the id. If it has not, it is a reset, and it comes again.
                Ok(0) | Err(_)
                    if joined.stage == Stage::HasReported || joined.stage == Stage::HasId && read.is_ok() =>
                {
                    done.insert(*rank, joined.nonce);
                    failed.get_or_insert((*rank, "it has ended before all ranks had begun".into()));
                    return false;
                }
                Ok(0) | Err(_) => "joined and left",
                // A report that has crossed the outcome.
                Ok(_) if joined.stage == Stage::KnowsOutcome => return true,
                Ok(count) => {
                    joined.report.extend(&bytes[..count]);
                    if joined.report.len() < Report::BYTES {
                        return true;
                    }
                    match <&[u8; Report::BYTES]>::try_from(&*joined.report).ok().and_then(Report::parse) {
                        Some(Report::Begun) if joined.stage == Stage::HasId => {
                            joined.report.clear();
                            joined.stage = Stage::HasReported;
                            return true;
                        }
                        Some(Report::Failed(reason)) if joined.stage <= Stage::HasId => {
                            joined.report.clear();
                            joined.failure = Some(reason);
                            return true;
                        }
                        _ => "sent what is no report",
                    }
                }
            };
            refusals
                .add(format!("rank {rank} {}", joined.failed_or(problem)), joined.stream.peer_addr().ok());
            false
        });
        progress
    }

    /// Tells the ranks that will wait no longer which ones are missing. It is the end of their connections alone: whoever
    /// reaches the port may say so.
    fn answer_impatient(&mut self) {
        let now = Instant::now();
        let is_impatient = |joined: &Joined| joined.stage == Stage::Waits && joined.until <= now;
        if !self.joined.values().any(is_impatient) {
            return;
        }
        let (ranks, count) = self.missing();
        let reply = Reply::Missing(ranks, count);
        let (gone, refusals) = (&mut self.gone, &mut self.refusals);
        self.joined.retain(|rank, joined| {
            if is_impatient(joined) {
                let _ = joined.stream.write(&reply.to_bytes(&joined.nonce));
                let problem = joined.failed_or("waited no longer");
                refusals.add(format!("rank {rank} {problem}"), joined.stream.peer_addr().ok());
                gone.insert(*rank);
                return false;
            }
            true
        });
    }

    /// Returns the first of the missing ranks, and their number.
    fn missing(&self) -> (Vec<u32>, u32) {
        let is_missing = |rank: &u32| !self.joined.contains_key(rank);
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

    /// Sends a message to the joined ranks that have not come to its stage, which brings them there.
    fn send(&mut self, message: &Reply, stage: Stage) -> bool {
        let mut progress = false;
        for joined in self.joined.values_mut().filter(|joined| joined.stage < stage) {
            // If it is not written, the connection is broken, which the next look at it finds.
            if is_written(&mut joined.stream, &message.to_bytes(&joined.nonce)) {
                joined.stage = stage;
            }
            progress = true;
        }
        progress
    }

    /// Tells the joined ranks which ones are missing, and returns the error.
    fn fail(&mut self) -> LaunchError {
        let (ranks, count) = self.missing();
        let reply = Reply::Missing(ranks.clone(), count);
        for joined in self.joined.values_mut() {
            let _ = joined.stream.write(&reply.to_bytes(&joined.nonce));
        }
        missing_ranks(&ranks, count, self.job, &self.deadline, self.detail())
    }

    /// Says where this rank has listened, who has come, and who was refused.
    fn detail(&self) -> String {
        let listened = self.listener.local_addr().map(|address| format!("rank 0 listened at {address}"));
        let came = |(rank, joined): (&u32, &Joined)| match joined.stream.peer_addr() {
            Ok(address) => {
                let from = format!("came from {}", address.ip().to_canonical());
                format!("rank {rank} {}", joined.failed_or(&from))
            }
            Err(_) => format!("rank {rank} {}", joined.failed_or("came")),
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

/// Creates a [`LaunchError::RankFailed`].
pub(super) fn rank_failed(rank: u32, reason: impl Into<Box<str>>) -> LaunchError {
    LaunchError::RankFailed { rank: rank as usize, reason: reason.into() }
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

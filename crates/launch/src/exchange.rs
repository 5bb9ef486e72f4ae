//! The exchange on a rank other than 0: it finds rank 0, joins, and waits for the id.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use super::announcement::Announcement;
use super::connection::{self, Deadline};
use super::directory;
use super::environment::{Environment, Ranks};
use super::error::{LaunchError, Result, rank_failed};
use super::job::{Name, Nonce, nonce};
use super::rendezvous::Rendezvous;
use super::tcp_store::TcpStore;
use super::wire::{Hello, Message, Peer};
use libnccl::UniqueId;

/// The time limit for rank 0 to accept a hello. Rank 0 accepts up to 128 connections at a time.
const ACCEPTED: Duration = Duration::from_secs(5);

/// The first and the longest time limit for connecting. The first is short: a kernel whose backlog is full drops connection
/// requests, and TCP repeats them only after a second.
const CONNECT: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];
const RETRY: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(250)];

const OF_ROOT: &str = "according to rank 0";
const UNEXPECTED: &str = "a reply out of order";

pub(super) struct Exchange<'a> {
    pub(super) environment: &'a Environment,
    pub(super) rendezvous: &'a Rendezvous,
    pub(super) name: Name,
    pub(super) deadline: Deadline,
}

impl Exchange<'_> {
    /// Joins the exchange, waits for the id, and returns it with the connection to rank 0. With a `failure`, reports it and never
    /// returns an id.
    pub(super) fn join(&self, failure: Option<&str>) -> Result<(UniqueId, Peer)> {
        let deadline = &self.deadline;
        let nonce = nonce();
        // Randomized, so that ranks that start together do not retry together.
        let jitter = Duration::from_micros((nonce % 256) as u64 * 40);
        let (mut connect, mut retry) = (CONNECT[0], RETRY[0]);
        let mut problem = None;
        // An attempt cut short by the deadline has a less specific error than an earlier attempt.
        let mut note = |reason: String| {
            if problem.is_none() || !deadline.has_passed() {
                problem = Some(reason);
            }
        };
        loop {
            match self.locate() {
                Err(reason) => note(reason),
                Ok((Announcement { nonce: root_nonce, port, hosts }, source)) => {
                    for host in hosts {
                        let mut reason = String::new();
                        let addresses =
                            connection::resolve(&host, port, deadline).unwrap_or_else(|problem| {
                                reason = problem;
                                Vec::new()
                            });
                        for address in addresses {
                            match self.attempt(address, root_nonce, nonce, connect, failure) {
                                Ok(result) => return result,
                                Err(problem) => reason = format!("rank 0 at {address}{source}: {problem}"),
                            }
                        }
                        note(reason);
                    }
                }
            }
            deadline.sleep(retry + jitter);
            if deadline.has_passed() {
                return Err(self.missing_ranks(&[0], 1, problem.unwrap_or_default()));
            }
            (connect, retry) = ((connect * 2).min(CONNECT[1]), (retry * 2).min(RETRY[1]));
        }
    }

    /// Returns rank 0's address and, for error messages, the place where it was published.
    fn locate(&self) -> Result<(Announcement, String), String> {
        let Self { environment, rendezvous, deadline, .. } = self;
        match rendezvous {
            Rendezvous::Tcp { host, port } => {
                Ok((Announcement { nonce: 0, port: *port, hosts: vec![host.clone()] }, String::new()))
            }
            Rendezvous::TcpStore { host, port } => {
                let (store, key) = (TcpStore::connect_to(host, *port, deadline)?, environment.key());
                let value = store.get(&key, deadline).map_err(|error| error.to_string());
                let announcement = value.and_then(|value| Announcement::parse(&value));
                let mut announcement =
                    announcement.map_err(|error| format!("{rendezvous}: key {key}: {error}"))?;
                // Rank 0 is on the host of the store, which each rank reaches by this name.
                announcement.hosts.insert(0, host.clone());
                Ok((announcement, format!(", by key {key} of {rendezvous}")))
            }
            Rendezvous::Directory(path) => {
                if environment.is_private {
                    directory::check_private(path).map_err(|error| format!("{}: {error}", path.display()))?;
                }
                let (announcement, file) = directory::read(path, environment.hash())?;
                Ok((announcement, format!(", by {file}")))
            }
        }
    }

    /// Attempts the exchange with rank 0 at this address. After an outer error, another attempt may succeed.
    fn attempt(
        &self,
        address: SocketAddr,
        root_nonce: Nonce,
        nonce: Nonce,
        connect: Duration,
        failure: Option<&str>,
    ) -> io::Result<Result<(UniqueId, Peer)>> {
        let Self { environment, deadline, name, .. } = self;
        let mut root = Peer::new(connection::connect(address, connect, deadline)?, address);
        // The list of missing ranks has to arrive before this rank gives up.
        let remaining = deadline.remaining();
        let wait = remaining - (remaining / 8).min(Duration::from_millis(500));
        let Ranks { rank, size, .. } = environment.ranks;
        let (job, name) = (environment.hash(), name.clone());
        root.send(&Message::Hello(Hello { job, root_nonce, nonce, rank, size, wait, name }))?;
        match root.receive_by(&deadline.part(ACCEPTED)) {
            Ok(Message::Accepted) => {}
            Ok(Message::Refused { is_final: true, reason }) => return Ok(Err(self.problem(reason))),
            Ok(Message::Refused { reason, .. }) => return Err(io::Error::other(reason)),
            Ok(_) => return Err(io::Error::other(UNEXPECTED)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Ok(Err(self.problem(format!("rank 0 has {error}"))));
            }
            Err(error) => return Err(error),
        }
        if let Some(reason) = failure {
            root.send(&Message::Failed(rank, reason.into()))?;
        }
        loop {
            return match root.receive_by(deadline)? {
                // Sent before rank 0 received the report.
                Message::Id(_) if failure.is_some() => continue,
                Message::Id(id) => Ok(Ok((id, root))),
                Message::Failed(rank, reason) => Ok(Err(rank_failed(rank, reason))),
                Message::Missing(ranks, missing) => Ok(Err(self.missing_ranks(&ranks, missing, OF_ROOT))),
                _ => Err(io::Error::other(UNEXPECTED)),
            };
        }
    }

    /// Reports to `root` whether this rank has begun to create its communicator. Waits until all ranks have begun.
    pub(super) fn report(&self, mut root: Peer, report: &Message) -> Result<()> {
        match root.send(report).and_then(|()| root.receive_by(&self.deadline)) {
            Ok(Message::Begun) => Ok(()),
            Ok(Message::Failed(rank, reason)) => Err(rank_failed(rank, reason)),
            Ok(Message::Missing(ranks, missing)) => Err(self.missing_ranks(&ranks, missing, OF_ROOT)),
            Ok(_) => Err(rank_failed(0, UNEXPECTED)),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                let elapsed = self.deadline.elapsed().as_secs_f64();
                Err(self.problem(format!("not all ranks had begun after {elapsed:.1} s")))
            }
            // Rank 0 sends the outcome before it closes a connection.
            Err(error) => Err(rank_failed(0, error.to_string())),
        }
    }

    pub(super) fn problem(&self, problem: String) -> LaunchError {
        LaunchError::Rendezvous { rendezvous: Box::new(self.rendezvous.clone()), problem: problem.into() }
    }

    /// Returns the error for `missing` missing ranks. `ranks` contains the first of them.
    pub(super) fn missing_ranks(
        &self,
        ranks: &[u32],
        missing: u32,
        detail: impl Into<Box<str>>,
    ) -> LaunchError {
        LaunchError::MissingRanks {
            ranks: ranks.iter().map(|rank| *rank as usize).collect(),
            missing: missing as usize,
            size: self.environment.ranks.size as usize,
            elapsed: self.deadline.elapsed(),
            detail: detail.into(),
        }
    }
}

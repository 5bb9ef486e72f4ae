//! The ranks other than 0: find rank 0, join, and wait for the id.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use super::announcement::Announcement;
use super::connection;
use super::directory;
use super::environment::Ranks;
use super::error::{LaunchError, rank_failed};
use super::exchange::Exchange;
use super::job::{Nonce, nonce};
use super::rendezvous::Rendezvous;
use super::tcp_store::TcpStore;
use super::wire::{Hello, Message, Peer};
use libnccl::UniqueId;

/// The time in which rank 0 answers a hello. It looks at a thousand connections every 20 ms.
const ACCEPTED: Duration = Duration::from_secs(5);

/// The first and the longest time for a connection, and those between two attempts. The first is short as rank 0 may be
/// asked by more ranks at once than its system lets wait: it drops their requests, which are repeated after a second.
const CONNECT: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];
const RETRY: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(250)];

const OF_ROOT: &str = "according to rank 0";

const UNEXPECTED: &str = "an answer out of order";

#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The next one may succeed.
    #[error("{0}")]
    Retry(String),
    #[error(transparent)]
    Final(#[from] LaunchError),
}

/// A rank that has the id.
pub(super) struct Member {
    pub(super) id: UniqueId,
    root: Peer,
}

impl Exchange<'_> {
    /// Returns once rank 0 has sent the id, which it does not send to a rank that has failed, for the reason `failure`.
    pub(super) fn join(&self, failure: Option<&str>) -> Result<Member, LaunchError> {
        let deadline = &self.deadline;
        let nonce = nonce();
        // Ranks that start together do not retry together.
        let jitter = Duration::from_micros((nonce % 256) as u64 * 40);
        let (mut connect, mut retry) = (CONNECT[0], RETRY[0]);
        let mut problem = None;
        // An attempt that the deadline cuts short says less than one before it.
        let mut note = |reason: String| {
            if problem.is_none() || !deadline.has_passed() {
                problem = Some(reason);
            }
        };
        loop {
            match self.locate() {
                Ok((rank_0, source)) => {
                    for host in &rank_0.hosts {
                        match self.attempt_host(host, &rank_0, &source, nonce, connect, failure) {
                            Ok(member) => return Ok(member),
                            Err(Failure::Final(error)) => return Err(error),
                            Err(Failure::Retry(reason)) => note(reason),
                        }
                    }
                }
                Err(reason) => note(reason),
            }
            deadline.sleep(retry + jitter);
            if deadline.has_passed() {
                return Err(self.missing_ranks(&[0], 1, problem.unwrap_or_default()));
            }
            (connect, retry) = ((connect * 2).min(CONNECT[1]), (retry * 2).min(RETRY[1]));
        }
    }

    /// Returns where rank 0 listens, and for errors where it has published that.
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

    fn attempt_host(
        &self,
        host: &str,
        rank_0: &Announcement,
        source: &str,
        nonce: Nonce,
        connect: Duration,
        failure: Option<&str>,
    ) -> Result<Member, Failure> {
        let mut problem = String::new();
        for address in connection::resolve(host, rank_0.port, &self.deadline).map_err(Failure::Retry)? {
            match self.attempt(address, rank_0.nonce, nonce, connect, failure) {
                Err(Failure::Retry(reason)) => problem = format!("rank 0 at {address}{source}: {reason}"),
                result => return result,
            }
        }
        Err(Failure::Retry(problem))
    }

    fn attempt(
        &self,
        address: SocketAddr,
        root_nonce: Nonce,
        nonce: Nonce,
        connect: Duration,
        failure: Option<&str>,
    ) -> Result<Member, Failure> {
        let Self { environment, deadline, name, .. } = self;
        let retry = |error: io::Error| Failure::Retry(error.to_string());
        let mut root = Peer::new(connection::connect(address, connect, deadline).map_err(retry)?, address);
        // The list of missing ranks has to arrive before this rank gives up.
        let remaining = deadline.remaining();
        let wait = remaining - (remaining / 8).min(Duration::from_millis(500));
        let Ranks { rank, size, .. } = environment.ranks;
        let (job, name) = (environment.hash(), name.clone());
        let hello = Hello { job, root_nonce, nonce, rank, size, wait, name };
        root.send(&Message::Hello(hello)).map_err(retry)?;
        let of_version = |error: io::Error| match error.kind() {
            ErrorKind::Unsupported => self.problem(format!("rank 0 has {error}")).into(),
            _ => retry(error),
        };
        match root.receive_by(&deadline.part(ACCEPTED)).map_err(of_version)? {
            Message::Accepted => {}
            Message::Refused { is_final: true, reason } => return Err(self.problem(reason).into()),
            Message::Refused { reason, .. } => return Err(Failure::Retry(reason)),
            _ => return Err(Failure::Retry(UNEXPECTED.into())),
        }
        if let Some(reason) = failure {
            root.send(&Message::Failed(rank, reason.into())).map_err(retry)?;
        }
        loop {
            match root.receive_by(deadline).map_err(retry)? {
                // It has crossed the report.
                Message::Id(_) if failure.is_some() => {}
                Message::Id(id) => return Ok(Member { id, root }),
                Message::Failed(rank, reason) => return Err(rank_failed(rank, reason).into()),
                Message::Missing(ranks, missing) => {
                    return Err(self.missing_ranks(&ranks, missing, OF_ROOT).into());
                }
                _ => return Err(Failure::Retry(UNEXPECTED.into())),
            }
        }
    }

    /// Reports what a member has made of the id, and returns once all ranks have begun.
    pub(super) fn report(&self, member: Member, report: &Message) -> Result<(), LaunchError> {
        let Member { mut root, .. } = member;
        let received = root.send(report).and_then(|()| root.receive_by(&self.deadline));
        let outcome = received.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => {
                let elapsed = self.deadline.elapsed().as_secs_f64();
                self.problem(format!("not all ranks had begun after {elapsed:.1} s"))
            }
            // Rank 0 answers all members before it closes their connections.
            _ => rank_failed(0, error.to_string()),
        })?;
        match outcome {
            Message::Begun => Ok(()),
            Message::Failed(rank, reason) => Err(rank_failed(rank, reason)),
            Message::Missing(ranks, missing) => Err(self.missing_ranks(&ranks, missing, OF_ROOT)),
            _ => Err(rank_failed(0, UNEXPECTED)),
        }
    }
}

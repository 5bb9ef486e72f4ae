//! Listening on rank 0, and publication of its address.

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::time::Duration;

use super::announcement::Announcement;
use super::connection::{self, Deadline};
use super::directory;
use super::error::{LaunchError, Result};
use super::exchange::Exchange;
use super::job;
use super::rendezvous::Rendezvous;
use super::root::Root;
use super::tcp_store::TcpStore;

/// The time between two attempts to listen on a port that is in use.
const LISTEN: Duration = Duration::from_millis(50);

/// The time limit for resolving the name of rank 0's host. Other ranks can connect meanwhile.
const RESOLVE: Duration = Duration::from_secs(1);

impl Exchange<'_> {
    /// Listens at the rendezvous as rank 0, and calls `work`.
    pub(super) fn listen<T>(&self, work: impl FnOnce(&mut Root<'_>) -> Result<T>) -> Result<T> {
        let Self { environment, rendezvous, deadline, .. } = self;
        let fail = |error: io::Error| self.problem(error.to_string());
        match rendezvous {
            Rendezvous::Tcp { host, port } => {
                let mut is_reported = false;
                let listener = loop {
                    match connection::listen(Some(host), *port) {
                        Ok(listener) => break listener,
                        // The process of an earlier attempt may still be exiting.
                        Err(error) if error.kind() == ErrorKind::AddrInUse && !deadline.has_passed() => {
                            if !std::mem::replace(&mut is_reported, true) {
                                log::warn!(
                                    "rank 0 waits for {rendezvous}, which is in use; if another job is there, ranks of this \
                                     one may join it, unless each job has a LIBNCCL_JOB or its own port"
                                );
                            }
                            deadline.sleep(LISTEN);
                        }
                        Err(error) => {
                            return Err(self.problem(format!("rank 0 cannot listen there: {error}")));
                        }
                    }
                };
                let elsewhere = connection::leads_elsewhere(host, &deadline.part(RESOLVE))
                    .inspect(|problem| log::warn!("{problem}: the other ranks may not reach rank 0 by it"));
                let mut done = work(&mut Root::new(&listener, self, 0));
                if let (Err(LaunchError::MissingRanks { detail, .. }), Some(problem)) = (&mut done, elsewhere)
                {
                    *detail = format!("{detail}; {problem}").into();
                }
                done
            }
            Rendezvous::TcpStore { host, port } => {
                let store = loop {
                    match TcpStore::connect_to(host, *port, deadline) {
                        Ok(store) => break store,
                        Err(problem) if deadline.has_passed() => return Err(self.problem(problem)),
                        Err(_) => deadline.sleep(LISTEN),
                    }
                };
                let (listener, mut announcement) = self.announce().map_err(fail)?;
                // Others may reach this host by the address that it uses to reach its own store.
                announcement.hosts.extend(store.local_address().map(|address| address.ip().to_string()));
                let text = announcement.to_string();
                store.set(&environment.key(), text.as_bytes(), deadline).map_err(fail)?;
                let done = work(&mut Root::new(&listener, self, announcement.nonce));
                // The store outlives this job.
                let _ = store.delete(&environment.key(), &Deadline::after(Duration::from_secs(1)));
                done
            }
            Rendezvous::Directory(path) => {
                if environment.is_private {
                    directory::remove_leftovers(path);
                    directory::create_private(path).map_err(fail)?;
                }
                let (listener, announcement) = self.announce().map_err(fail)?;
                let published = directory::publish(path, environment.hash(), &announcement).map_err(fail)?;
                let done = work(&mut Root::new(&listener, self, announcement.nonce));
                drop(published);
                if environment.is_private {
                    let _ = std::fs::remove_dir(path);
                }
                done
            }
        }
    }

    /// Listens on a free port. Returns the listener and its announcement.
    fn announce(&self) -> io::Result<(TcpListener, Announcement)> {
        let is_local = self.environment.ranks.local_size == self.environment.ranks.size;
        let hosts = if is_local { vec!["127.0.0.1".into()] } else { connection::own_hosts() };
        let listener = connection::listen(is_local.then_some("127.0.0.1"), 0)?;
        let port = listener.local_addr()?.port();
        Ok((listener, Announcement { nonce: job::nonce(), port, hosts }))
    }
}

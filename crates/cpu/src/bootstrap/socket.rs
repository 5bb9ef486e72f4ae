//! The sockets of a rendezvous: creating them, waiting for messages, and the credentials of the other end.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketFlags, SocketType, UCred, socket_with};
use rustix::process::geteuid;

use crate::bootstrap::join_context::JoinContext;
use crate::diag::error::{Error, Result};
use crate::shm::process::Process;

/// The shortest time after which a rank that waits for events checks whether it was cancelled.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The longest.
const LONGEST_POLL: Duration = Duration::from_millis(100);

/// The interval in which ranks check that the others still live, where the kernel does not report it.
pub(super) const LIVENESS_INTERVAL: Duration = Duration::from_millis(200);

/// Nonblocking, so that no call waits in the kernel without an end.
pub(super) const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

pub(super) fn create() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// Returns how long a rank that has waited for so long may wait for an event before it looks at what else may have
/// happened.
pub(super) fn poll_interval(waited: Duration) -> Duration {
    (waited / 64).clamp(POLL_INTERVAL, LONGEST_POLL)
}

/// Waits for an event, for `longest` at most, which is less than a second.
pub(super) fn wait(watched: &mut [PollFd<'_>], longest: Duration) -> Result {
    let timeout = Timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() };
    match poll(watched, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::system("the sockets of the rendezvous cannot be polled", error)),
    }
}

/// Receives from `connection` once there is a message. If `process` at the other end ends, so does the connection.
pub(super) fn receive<T>(
    connection: &OwnedFd,
    process: Option<Process>,
    context: &JoinContext<'_>,
    mut receive: impl FnMut() -> rustix::io::Result<T>,
) -> Result<rustix::io::Result<T>> {
    let began = Instant::now();
    let (mut checked, mut ended) = (began, false);
    loop {
        (context.check_cancelled)()?;
        let mut watched = [PollFd::new(connection, PollFlags::IN)];
        wait(&mut watched, poll_interval(began.elapsed()))?;
        // Not before poll reports an event: if a message and the end of the connection arrive at the same time, a
        // nonblocking receive may return the end first (still so in Linux 6.18).
        if !watched[0].revents().is_empty() {
            match retry_on_intr(&mut receive) {
                Err(Errno::AGAIN) => {}
                // If the other end has closed the connection with messages unread, Linux says so before it gives the
                // last ones from there.
                Err(Errno::CONNRESET) => {
                    let last = retry_on_intr(&mut receive);
                    return Ok(last.map_err(|_| Errno::CONNRESET));
                }
                received => return Ok(received),
            }
        } else if ended {
            // Messages that it sent before have been received.
            return Ok(Err(Errno::CONNRESET));
        }
        if checked.elapsed() >= LIVENESS_INTERVAL {
            checked = Instant::now();
            ended = process.is_some_and(|process| process.ended());
        }
    }
}

/// Pauses before another attempt; the other rank is most often there at once.
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

/// Returns the pid at the other end.
pub(super) fn pid_of(connection: &OwnedFd) -> Result<u64> {
    Ok(credentials(connection)?.pid.as_raw_pid().unsigned_abs().into())
}

/// Returns `true` if the process at the other end belongs to this process's user.
pub(super) fn is_same_user(connection: &OwnedFd) -> bool {
    credentials(connection).is_ok_and(|peer| peer.uid == geteuid())
}

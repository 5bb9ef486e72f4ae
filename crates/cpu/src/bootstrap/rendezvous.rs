//! The rendezvous of ranks at a Unix socket that the id names.
//!
//! The rank that binds the socket is the root, inside its own call: it waits for the peers, creates the shared state and
//! sends it to them. Each peer keeps its connection until all have the state, so the kernel reports a rank that dies before
//! that at once; a little later if a child that the rank forked still holds the connection.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendFlags, SocketAddrUnix, bind, connect, listen, send};

use crate::bootstrap::hello::Hello;
use crate::bootstrap::join_context::JoinContext;
use crate::bootstrap::peer::{self, JoinError};
use crate::bootstrap::root::{LINGER, Root};
use crate::bootstrap::socket::{self, ABORTED, pause};
use crate::bootstrap::unique_id::UniqueId;
use crate::diag::error::{Error, Result};
use crate::shm::layout::MAX_RANKS;
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;

/// Joins `ranks` ranks that were all given `id`, as `rank`, and returns the state that they share.
pub(crate) fn join(
    id: &UniqueId,
    ranks: usize,
    rank: usize,
    context: &JoinContext<'_>,
) -> Result<SharedState> {
    let me = Process::current().map_err(|error| Error::system("/proc/self/stat", error))?;
    if ranks == 1 {
        return Ok(SharedState::create(&[me])?.0);
    }
    let name: String = id.public.iter().map(|byte| format!("{byte:02x}")).collect();
    let failed = |error| Error::system("the rendezvous socket cannot be reached", error);
    let address =
        SocketAddrUnix::new_abstract_name(format!("libnccl-cpu-{name}").as_bytes()).map_err(failed)?;
    let hello = Hello { secret: id.secret, ranks, rank, started: me.started };
    for attempt in 0.. {
        let listener = socket::create().map_err(failed)?;
        match bind(&listener, &address) {
            Ok(()) => {
                listen(&listener, MAX_RANKS as i32).map_err(failed)?;
                return Root::new(listener, hello, context).run(me);
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(failed(error)),
        }
        let connection = socket::create().map_err(failed)?;
        match retry_on_intr(|| connect(&connection, &address)) {
            Ok(()) => {
                let error = match peer::join(&connection, hello, context) {
                    Ok(state) => return Ok(state),
                    Err(error) => error,
                };
                if (context.check_cancelled)().is_err() {
                    let _ = send(&connection, ABORTED, SendFlags::NOSIGNAL);
                }
                return Err(match error {
                    JoinError::RootGone => become_error_root(listener, &address, hello, context),
                    JoinError::Failed(error) => error,
                });
            }
            // The root is not listening yet, has a full backlog, or is gone.
            Err(Errno::CONNREFUSED | Errno::AGAIN) => {
                (context.check_cancelled)()?;
                pause(attempt);
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Err(Error::internal("the rendezvous socket was never reached"))
}

/// Takes the dead root's place to tell ranks that come later, which would wait for it and for this rank.
fn become_error_root(
    listener: OwnedFd,
    address: &SocketAddrUnix,
    hello: Hello,
    context: &JoinContext<'_>,
) -> Error {
    let error = Error::remote("the rendezvous root died before all ranks had joined");
    // Members of a parent see each other's state there.
    let linger = if context.all_are_members(hello.ranks) { Duration::ZERO } else { LINGER };
    let end = Instant::now() + linger;
    for attempt in (0..).take_while(|_| Instant::now() < end) {
        if bind(&listener, address).is_ok() {
            let _ = listen(&listener, MAX_RANKS as i32);
            Root::new(listener, hello, context).refuse_all(&error);
            break;
        }
        // Another rank was faster: one that does the same, or one that came late and waits.
        let Ok(connection) = socket::create() else { break };
        if connect(&connection, address).is_ok() && peer::is_accepted(&connection, hello) {
            let _ = send(&connection, ABORTED, SendFlags::NOSIGNAL);
            break;
        }
        pause(attempt);
    }
    error
}

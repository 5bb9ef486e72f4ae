//! The rendezvous of ranks at a Unix socket named by the id.
//!
//! The rank that binds the socket acts as the root inside its own call: it waits for the peers, creates the shared state and
//! sends it to them. Each process keeps its connection until all have the state. If a process dies before that, its connection
//! ends. If a forked child still holds the connection, a periodic check detects the death a little later.
//!
//! If a rendezvous fails, all ranks that have joined, and all that join within [`LINGER`], get the error:
//!
//! | event before all have joined, or while the state is sent | consequence |
//! |---|---|
//! | a peer is cancelled, or its process ends | the root receives the peer's message, or its connection to the peer ends; the root notifies all connected ranks, and lingers for the others |
//! | the root's call fails | the root notifies all connected ranks, and lingers |
//! | the call of another rank fails, or is refused, before or after the rank joins | that rank connects and sends the error; if there is no root, it becomes the root and lingers |
//! | the root is cancelled, or its process ends | the peers receive the root's message, or their connections end; each peer fails; one peer binds the address and lingers, and the other peers notify it that they have failed |
//! | the root's process ends after it released some peers | those peers keep the state, and [`liveness`](crate::shm::liveness) reports the root; the other peers fail, and depart from the state |
//! | a rank joins after [`LINGER`] | the rendezvous no longer exists: the rank binds the address and waits for the others as if it were the first, until its wait times out |
//!
//! Only the last row depends on time. Ids may be reused (`NCCL_COMM_ID`), so a root that lingered longer would refuse the ranks
//! of the next attempt. The last row does not apply to ranks of a parent communicator, which observe each other's state there.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{SocketAddrUnix, bind, connect, listen};

use crate::bootstrap::find_root::{Peer, Role, find_root};
use crate::bootstrap::join::{self, FirstRank, JoinContext, JoinRole, LimitedWait, Outcome};
use crate::bootstrap::root::{LINGER, Root};
use crate::bootstrap::unique_id::UniqueId;
use crate::bootstrap::wire::{
    Hello, Message, cancelled, create_socket, failed, gone, is_same_user, pause, pid_of, receive, send,
};
use crate::diag::debug;
use crate::diag::error::{Error, Result};
use crate::shm::layout::MAX_RANKS;
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;

/// The time by which a peer waits longer than the root, which thus times out first and names the missing ranks.
const ROOT_FIRST: Duration = Duration::from_secs(1);

/// If the root sends no message for this long, it is considered to have accepted the rank.
const ACCEPTED: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
enum JoinError {
    /// The root was cancelled or has exited, so it does not notify the ranks that join later.
    #[error(transparent)]
    RootLeft(Error),
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Joins, as `rank`, a rendezvous of `ranks` ranks that all have `id`, and returns their shared state.
pub(crate) fn join(
    id: &UniqueId,
    ranks: usize,
    rank: usize,
    context: &JoinContext<'_>,
) -> Result<Arc<SharedState>> {
    let me = Process::current().map_err(|error| Error::system("/proc/self/stat", error))?;
    if ranks == 1 {
        return Ok(Arc::new(SharedState::create(&[me])?.0));
    }
    let hello = Hello { secret: id.secret, ranks, rank, identity: me.identity };
    loop {
        match join::enter(hello.secret) {
            JoinRole::First(first) => return join_as_first(id, &first, hello, context),
            JoinRole::Other(join) => {
                if let Some(result) = join.wait(hello, context) {
                    return result;
                }
            }
        }
    }
}

/// Notifies the other ranks with `id` that the call for which they wait has failed with `error`. `place` is the number of ranks
/// and the rank passed to that call, if both are valid.
pub(crate) fn fail(id: &UniqueId, place: Option<(usize, usize)>, error: &Error) {
    let Ok(me) = Process::current() else { return };
    let (ranks, rank) = place.unwrap_or((0, 0));
    if ranks == 1 {
        return;
    }
    let who = match place {
        Some(_) => format!("rank {rank}"),
        None => format!("the call of process {}", me.pid),
    };
    let hello = Hello { secret: id.secret, ranks, rank, identity: me.identity };
    let error = failed(&who, error);
    let began = Instant::now();
    let check_cancelled = || if began.elapsed() < LINGER { Ok(()) } else { Err(error.clone()) };
    let context = JoinContext { name: "", check_cancelled: &check_cancelled, waits_for: &drop, parent: None };
    match find_root(id, &check_cancelled) {
        Ok(Role::Root(listener)) => Root::new(listener, hello, &context).refuse_all(&error),
        Ok(Role::Peer(Peer { connection, .. })) => {
            let _ = send(&connection, &Message::Hello(hello));
            let _ = send(&connection, &Message::Failed(error.clone()));
        }
        Err(error) => {
            debug::warn(|| {
                format!("the other ranks were not notified that a call has failed: {}", error.text)
            });
        }
    }
}

fn join_as_first(
    id: &UniqueId,
    first: &FirstRank,
    hello: Hello,
    context: &JoinContext<'_>,
) -> Result<Arc<SharedState>> {
    let is_cancelled = || (context.check_cancelled)().is_err();
    let end = |error: &Error| {
        let error = if is_cancelled() { cancelled(hello.rank) } else { error.clone() };
        first.end(Outcome::Ended(Err(error)));
    };
    let Peer { connection, address, spare_socket } = match find_root(id, context.check_cancelled) {
        Ok(Role::Root(listener)) => {
            first.end(Outcome::Root);
            return Root::new(listener, hello, context).run();
        }
        Ok(Role::Peer(peer)) => peer,
        Err(error) => {
            end(&error);
            return Err(error);
        }
    };
    let connection = Arc::new(connection);
    match join_as_peer(&connection, hello, first, context) {
        Ok(state) => {
            first.end(Outcome::Ended(Ok(Arc::clone(&state))));
            Ok(state)
        }
        Err(JoinError::Failed(error)) => {
            // If the error came from the root, this has no effect.
            let message = match is_cancelled() {
                true => Message::Left(cancelled(hello.rank)),
                false => Message::Failed(failed(&format!("rank {}", hello.rank), &error)),
            };
            let _ = send(&connection, &message);
            end(&error);
            Err(error)
        }
        Err(JoinError::RootLeft(error)) => {
            // Only the parent's state shows which rank it was.
            let known = (0..hello.ranks).find_map(|rank| context.check_alive(rank).err());
            let error = known.unwrap_or(error);
            end(&error);
            replace_root(&address, spare_socket, hello, &error, context);
            Err(error)
        }
    }
}

fn join_as_peer(
    root: &Arc<OwnedFd>,
    hello: Hello,
    first: &FirstRank,
    context: &JoinContext<'_>,
) -> Result<Arc<SharedState>, JoinError> {
    // The reply shows whether the root still exists.
    let _ = send(root, &Message::Hello(hello));
    first.share(root, hello);
    let (process, ended) = match Process::from_pid(pid_of(root)?) {
        Ok(process) => (Some(process), false),
        Err(error) => (None, error.kind() == ErrorKind::NotFound),
    };
    let pid = process.map_or_else(String::new, |process| format!(" (process {})", process.pid));
    let root_left = || {
        let who = format!("the root of the id, the rank that joined first{pid},");
        JoinError::RootLeft(gone(&who, process))
    };
    if ended {
        return Err(root_left());
    }
    let Hello { rank, ranks, .. } = hello;
    let waiting = LimitedWait::begin(ROOT_FIRST);
    let check_cancelled = || {
        (context.check_cancelled)()?;
        waiting.check(rank, context.name, || {
            let condition = process.and_then(|process| process.condition());
            let does = condition.unwrap_or("waits for the ranks that are missing and reports them");
            format!(
                "rank {rank} of {ranks} still waits for the root of its id, the rank that joined first{pid}, which {does}"
            )
        })
    };
    (context.waits_for)(format!(
        "rank {rank} of {ranks} waits for the root of its id, the rank that joined first{pid}, which waits for the others"
    ));
    let receive_ready = || match receive(root, process, &check_cancelled)? {
        Some((Message::Ready, file)) => Ok(file),
        Some((Message::Failed(error), _)) => Err(JoinError::Failed(error)),
        Some((Message::Left(error), _)) => Err(JoinError::RootLeft(error)),
        Some((Message::Hello(_), _)) | None => Err(root_left()),
    };
    let file =
        receive_ready()?.ok_or_else(|| Error::internal("the rendezvous root sent no shared memory"))?;
    let joined = first.complete();
    let state = SharedState::open(file, ranks)?;
    // If the root is a rank of this process, they share its mapping.
    let created = SharedState::registered().into_iter().find(|created| created.nonce() == state.nonce());
    let state = created.unwrap_or_else(|| Arc::new(state));
    let _ = send(root, &Message::Ready);
    receive_ready().inspect_err(|_| {
        // Other ranks may already use the shared state. A rank beyond its number has made the root fail.
        joined.iter().filter(|rank| **rank < ranks).for_each(|rank| state.depart(*rank));
    })?;
    Ok(state)
}

/// Replaces the former root, unless another peer already has, so that ranks that join later get an error instead of waiting.
fn replace_root(
    address: &SocketAddrUnix,
    listener: OwnedFd,
    hello: Hello,
    error: &Error,
    context: &JoinContext<'_>,
) {
    // Members of a parent observe each other's state there.
    let linger = if context.all_are_members(hello.ranks) { Duration::ZERO } else { LINGER };
    let end = Instant::now() + linger;
    for attempt in (0..).take_while(|_| Instant::now() < end) {
        if bind(&listener, address).is_ok() {
            let _ = listen(&listener, MAX_RANKS as i32);
            Root::new(listener, hello, context).refuse_all(error);
            break;
        }
        // Another rank was faster: either one that also replaces the root, or one that joined late and waits.
        let Ok(connection) = create_socket() else { break };
        if connect(&connection, address).is_ok() && is_accepted(&connection, hello) {
            let _ = send(&connection, &Message::Left(cancelled(hello.rank)));
            break;
        }
        pause(attempt);
    }
}

/// Returns whether a root accepts this rank. A connection is no proof: the socket of a dead root may exist a little longer.
fn is_accepted(root: &OwnedFd, hello: Hello) -> bool {
    if !is_same_user(root) {
        return false;
    }
    let _ = send(root, &Message::Hello(hello));
    let began = Instant::now();
    let check_limit = || match began.elapsed() < ACCEPTED {
        true => Ok(()),
        false => Err(Error::internal("the root sent nothing")),
    };
    // A root that sends nothing waits for other ranks.
    receive(root, None, &check_limit).map_or(true, |received| received.is_some())
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags};
    use rustix::io::Errno;
    use rustix::net::accept;

    use super::*;
    use crate::bootstrap::join::ParentComm;
    use crate::bootstrap::wire::wait;

    /// Simulates a root whose call has ended but whose socket is still held by a forked process.
    #[test]
    fn member_that_has_left_is_named_if_a_root_accepts_and_says_nothing() {
        let (id, me) = (UniqueId::generate().unwrap(), Process::current().unwrap());
        let (state, _file) = SharedState::create(&[me, me]).unwrap();
        state.depart(0);
        let parent = Some(ParentComm { state: &state, members: &[0, 1], must_be_healthy: false });
        let context = JoinContext { name: "", check_cancelled: &|| Ok(()), waits_for: &drop, parent };
        let Ok(Role::Root(listener)) = find_root(&id, &|| Ok(())) else { panic!("another rank is the root") };
        let error = std::thread::scope(|scope| {
            scope.spawn(move || {
                // The listener does not block, and the rank may connect later than this thread starts.
                while wait(&mut [PollFd::new(&listener, PollFlags::IN)], LINGER).is_ok() {
                    match accept(&listener) {
                        Ok(connection) => return drop(connection),
                        Err(error) => assert_eq!(error, Errno::AGAIN),
                    }
                }
            });
            join(&id, 2, 1, &context).unwrap_err()
        });
        assert_eq!(error.text, "rank 0 has finalized or destroyed its communicator");
    }
}

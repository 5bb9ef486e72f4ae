//! The rendezvous of ranks at a Unix socket that the id names.
//!
//! The rank that binds the socket is the root, inside its own call: it waits for the peers, creates the shared state and
//! sends it to them. Each process keeps its connection until all have the state, so the kernel reports one that dies before
//! that at once; a little later if a child that it forked still holds the connection.
//!
//! Every rank that has come gets the error of a rendezvous that fails, and so does one that comes up to [`LINGER`] later:
//!
//! | event | before all have come, or while the state is sent |
//! |---|---|
//! | a peer is cancelled, or its process ends | it says so, or its connection ends; the root tells all who are connected, and stays for [`LINGER`] for those who are not |
//! | the root's call fails | it tells all who are connected, and stays for [`LINGER`] |
//! | the call of another rank fails, or has failed before it comes, or its rank is refused | it comes, and says so; if it is the first, it stays for [`LINGER`] |
//! | the root is cancelled, or its process ends | it says so, or all connections end: each peer fails, and one of them binds the address and stays for [`LINGER`], to tell those who come; the other peers tell it that they have failed |
//! | the root's process ends after it told some peers that all have the state | those keep it, and [`liveness`](crate::shm::liveness) reports the root; the others fail, and leave the state with that |
//! | a rank comes after [`LINGER`] | nothing is left of the rendezvous: the rank binds the address and waits for the others as if it were the first, until the limit of waits |
//!
//! The last row is the only one that time decides, in favour of ids that are used again (`NCCL_COMM_ID`): whatever stayed
//! longer to refuse ranks would refuse those of the next attempt. Ranks of a parent communicator do not depend on it, as
//! they see each other's state there. `tests/cpu/rendezvous_model.rs` tries every order of
//! these events for a few ranks.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendFlags, SocketAddrUnix, bind, connect, listen, send};

use crate::bootstrap::election::Election;
use crate::bootstrap::hello::Hello;
use crate::bootstrap::join_context::JoinContext;
use crate::bootstrap::message::{aborted, failed, failure, refused};
use crate::bootstrap::peer::{self, JoinError};
use crate::bootstrap::root::{LINGER, Root};
use crate::bootstrap::shared_join::{self, FirstRank, JoinRole};
use crate::bootstrap::socket::{self, is_same_user, pause};
use crate::bootstrap::unique_id::UniqueId;
use crate::diag::debug;
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
) -> Result<Arc<SharedState>> {
    let me = Process::current().map_err(|error| Error::system("/proc/self/stat", error))?;
    if ranks == 1 {
        return Ok(Arc::new(SharedState::create(&[me])?.0));
    }
    let hello = Hello { secret: id.secret, ranks, rank, identity: me.identity };
    loop {
        match shared_join::enter(hello.secret) {
            JoinRole::First(first) => return join_as_first(id, first, hello, me, context),
            JoinRole::Other(join) => {
                if let Some(result) = join.wait(hello, context) {
                    return result;
                }
            }
        }
    }
}

/// Notifies the ranks that were given `id` that a call, for which they wait, has failed. `place` is its number of ranks and
/// its rank, if they are valid.
pub(crate) fn fail(id: &UniqueId, place: Option<(usize, usize)>, error: &Error) {
    let Ok(me) = Process::current() else { return };
    let (hello, message) = match place {
        Some((1, _)) => return,
        Some((ranks, rank)) => {
            (Hello { secret: id.secret, ranks, rank, identity: me.identity }, failed(rank, error))
        }
        None => (Hello::of_refused(id.secret, me.identity), refused(std::process::id(), error)),
    };
    let Some(error) = failure(&message) else { return };
    let began = Instant::now();
    let check_cancelled = || if began.elapsed() < LINGER { Ok(()) } else { Err(error.clone()) };
    let context = JoinContext { name: "", check_cancelled: &check_cancelled, waits_for: &drop, parent: None };
    match find_root(id, &context) {
        Ok(Role::Root(listener)) => Root::new(listener, hello, &context).refuse_all(&error),
        Ok(Role::Peer(_, connection)) => {
            let _ = send(&connection, &hello.to_bytes(), SendFlags::NOSIGNAL);
            let _ = send(&connection, &message, SendFlags::NOSIGNAL);
        }
        Err(error) => {
            debug::warn(|| {
                format!("the other ranks were not notified that a call has failed: {}", error.text)
            });
        }
    }
}

/// Joins as the first rank of this process, or becomes the root.
fn join_as_first(
    id: &UniqueId,
    first: FirstRank,
    hello: Hello,
    me: Process,
    context: &JoinContext<'_>,
) -> Result<Arc<SharedState>> {
    let (root, connection) = match find_root(id, context) {
        Ok(Role::Root(listener)) => {
            first.become_root();
            return Root::new(listener, hello, context).run(me);
        }
        Ok(Role::Peer(root, connection)) => (root, Arc::new(connection)),
        Err(error) => return first.end(Err(error), hello.rank, context),
    };
    let error = match peer::join(&connection, hello, &first, context) {
        Ok(state) => return first.end(Ok(state), hello.rank, context),
        Err(error) => error,
    };
    let is_cancelled = (context.check_cancelled)().is_err();
    if is_cancelled {
        let _ = send(&connection, &aborted(hello.rank), SendFlags::NOSIGNAL);
    }
    match error {
        JoinError::RootGone(error) => {
            // Which rank it was, only the parent's state tells.
            let known = (0..hello.ranks).find_map(|rank| context.check_alive(rank).err());
            let error = known.unwrap_or(error);
            let result = first.end(Err(error.clone()), hello.rank, context);
            become_error_root(root, hello, &error, context);
            result
        }
        JoinError::Failed(error) => {
            if !is_cancelled {
                // The root knows it already if the error is from there.
                let _ = send(&connection, &failed(hello.rank, &error), SendFlags::NOSIGNAL);
            }
            first.end(Err(error), hello.rank, context)
        }
    }
}

/// The role of a rank in a rendezvous.
enum Role {
    /// The root, with the socket that listens.
    Root(OwnedFd),
    /// A peer, with the connection to the root.
    Peer(RootPlace, OwnedFd),
}

/// The address of the root, and a socket for the peer that takes its place: there may be no descriptor left then.
struct RootPlace {
    address: SocketAddrUnix,
    socket: OwnedFd,
}

/// The time after which a name at which nobody accepts connections counts as another user's.
const HELD: Duration = Duration::from_secs(1);

/// Connects to the root of an id, or becomes it.
fn find_root(id: &UniqueId, context: &JoinContext<'_>) -> Result<Role> {
    let usual = UniqueId::socket_name(&id.public);
    let election = match id.is_of_address {
        true => Election::enter(id, context.check_cancelled)?,
        false => None,
    };
    if let Some(chosen) = election.as_ref().and_then(Election::chosen)
        && let Some(role) = find_chosen(&chosen, context)?
    {
        return Ok(role);
    }
    if let Some(role) = find_root_at(&usual, id.is_of_address, context)? {
        return Ok(role);
    }
    let taken = || Error::system("the rendezvous socket belongs to another user", Errno::ACCESS);
    // Held until this rank listens.
    let election = election.ok_or_else(taken)?;
    let chosen = election.choose()?;
    debug::warn(|| {
        format!("another user has the rendezvous socket of NCCL_COMM_ID; the ranks meet at {chosen}")
    });
    find_root_at(&chosen, false, context)?.ok_or_else(taken)
}

/// Connects to the root at the name that was chosen last; `None` if it is there no more.
fn find_chosen(name: &str, context: &JoinContext<'_>) -> Result<Option<Role>> {
    let (address, began) = (address(name)?, Instant::now());
    for attempt in 0.. {
        let connection = socket::create().map_err(cannot_reach)?;
        match retry_on_intr(|| connect(&connection, &address)) {
            Ok(()) if is_same_user(&connection) => {
                let socket = socket::create().map_err(cannot_reach)?;
                return Ok(Some(Role::Peer(RootPlace { address, socket }, connection)));
            }
            // Others may have filled its backlog.
            Err(Errno::AGAIN) if began.elapsed() < HELD => {
                (context.check_cancelled)()?;
                pause(attempt);
            }
            _ => break,
        }
    }
    Ok(None)
}

/// Connects to the root at a name, or becomes it; `None` if another user has the name.
fn find_root_at(name: &str, is_guessable: bool, context: &JoinContext<'_>) -> Result<Option<Role>> {
    let (address, began) = (address(name)?, Instant::now());
    for attempt in 0.. {
        let listener = socket::create().map_err(cannot_reach)?;
        match bind(&listener, &address) {
            Ok(()) => {
                listen(&listener, MAX_RANKS as i32).map_err(cannot_reach)?;
                return Ok(Some(Role::Root(listener)));
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(cannot_reach(error)),
        }
        let connection = socket::create().map_err(cannot_reach)?;
        match retry_on_intr(|| connect(&connection, &address)) {
            Ok(()) if is_guessable && !is_same_user(&connection) => return Ok(None),
            Ok(()) => return Ok(Some(Role::Peer(RootPlace { address, socket: listener }, connection))),
            Err(Errno::CONNREFUSED | Errno::AGAIN) if is_guessable && began.elapsed() > HELD => {
                return Ok(None);
            }
            // The root is not listening yet, has a full backlog, or is gone.
            Err(Errno::CONNREFUSED | Errno::AGAIN) => {
                (context.check_cancelled)()?;
                pause(attempt);
            }
            Err(error) => return Err(cannot_reach(error)),
        }
    }
    Err(Error::internal("the rendezvous socket was never reached"))
}

fn address(name: &str) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(cannot_reach)
}

fn cannot_reach(error: Errno) -> Error {
    Error::system("the rendezvous socket cannot be reached", error)
}

/// Takes the dead root's place to tell ranks that come later, which would wait for it and for this rank.
fn become_error_root(root: RootPlace, hello: Hello, error: &Error, context: &JoinContext<'_>) {
    let RootPlace { address, socket: listener } = root;
    // Members of a parent see each other's state there.
    let linger = if context.all_are_members(hello.ranks) { Duration::ZERO } else { LINGER };
    let end = Instant::now() + linger;
    for attempt in (0..).take_while(|_| Instant::now() < end) {
        if bind(&listener, &address).is_ok() {
            let _ = listen(&listener, MAX_RANKS as i32);
            Root::new(listener, hello, context).refuse_all(error);
            break;
        }
        // Another rank was faster: one that does the same, or one that came late and waits.
        let Ok(connection) = socket::create() else { break };
        if connect(&connection, &address).is_ok() && peer::is_accepted(&connection, hello) {
            let _ = send(&connection, &aborted(hello.rank), SendFlags::NOSIGNAL);
            break;
        }
        pause(attempt);
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::accept;

    use super::*;
    use crate::bootstrap::join_context::ParentComm;

    /// Like a root whose call has ended, while a process that was forked meanwhile still holds its socket.
    #[test]
    fn member_that_has_left_is_named_if_a_root_accepts_and_says_nothing() {
        let (id, me) = (UniqueId::generate().unwrap(), Process::current().unwrap());
        let (state, _file) = SharedState::create(&[me, me]).unwrap();
        state.depart(0);
        let parent = Some(ParentComm { state: &state, members: &[0, 1], must_be_healthy: false });
        let context = JoinContext { name: "", check_cancelled: &|| Ok(()), waits_for: &drop, parent };
        let Ok(Role::Root(listener)) = find_root(&id, &context) else { panic!("another rank is the root") };
        let error = std::thread::scope(|scope| {
            scope.spawn(move || drop(accept(&listener).unwrap()));
            join(&id, 2, 1, &context).unwrap_err()
        });
        assert_eq!(error.text, "rank 0 has left: its communicator is gone");
    }
}

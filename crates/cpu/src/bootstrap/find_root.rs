//! Finding the root of an id. The rank that binds the abstract socket named by the id is the root; the other ranks connect to it.
//!
//! The first process to bind an abstract name owns it, and another user can guess the name for an address in `NCCL_COMM_ID`.
//! Therefore, a user's ranks with such an id elect the root one after another, holding the lock of a directory that only this
//! user can write to. If another user owns the name, the electing rank chooses a random name and writes it to a file in the
//! directory for the other ranks.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SocketAddrUnix, bind, connect, listen};
use rustix::process::geteuid;

use crate::bootstrap::unique_id::{UniqueId, random};
use crate::bootstrap::wire::{create_socket, is_same_user, pause};
use crate::diag::debug;
use crate::diag::error::{Error, Result};
use crate::shm::layout::MAX_RANKS;

/// The time after which the name of an address is assumed to belong to another user if no connections are accepted there.
const HELD: Duration = Duration::from_secs(1);

/// The longest wait for another rank's election. A process that is stopped during its election must not block all other ranks.
const LOCK_LIMIT: Duration = Duration::from_secs(20);

/// The role of a rank in a rendezvous.
pub(super) enum Role {
    /// The root, with the listening socket.
    Root(OwnedFd),
    Peer(Peer),
}

pub(super) struct Peer {
    pub(super) connection: OwnedFd,
    pub(super) address: SocketAddrUnix,
    /// For the peer that replaces the root, which may have no file descriptors left at that point.
    pub(super) spare_socket: OwnedFd,
}

/// Connects to the root of an id, or becomes the root.
pub(super) fn find_root(id: &UniqueId, check_cancelled: &dyn Fn() -> Result) -> Result<Role> {
    let election = if id.is_of_address { Election::enter(id, check_cancelled)? } else { None };
    let chosen = election.as_ref().and_then(Election::chosen_name);
    let mut name = chosen.unwrap_or_else(|| UniqueId::socket_name(&id.public));
    loop {
        if let Some(role) = find_root_at(&name, id.is_of_address, check_cancelled)? {
            return Ok(role);
        }
        let Some(election) = &election else {
            return Err(Error::system("the rendezvous socket belongs to another user", Errno::ACCESS));
        };
        name = election.choose_name()?;
        debug::warn(|| {
            format!("another user has the rendezvous socket of NCCL_COMM_ID; the ranks meet at {name}")
        });
    }
}

/// Connects to the root at a name, or becomes the root. Returns `None` if another user has the name.
fn find_root_at(
    name: &str,
    is_of_address: bool,
    check_cancelled: &dyn Fn() -> Result,
) -> Result<Option<Role>> {
    let cannot_reach = |error| Error::system("the rendezvous socket cannot be reached", error);
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(cannot_reach)?;
    let began = Instant::now();
    for attempt in 0.. {
        let listener = create_socket().map_err(cannot_reach)?;
        match bind(&listener, &address) {
            Ok(()) => {
                listen(&listener, MAX_RANKS as i32).map_err(cannot_reach)?;
                return Ok(Some(Role::Root(listener)));
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(cannot_reach(error)),
        }
        let connection = create_socket().map_err(cannot_reach)?;
        match retry_on_intr(|| connect(&connection, &address)) {
            Ok(()) if !is_same_user(&connection) => return Ok(None),
            Ok(()) => return Ok(Some(Role::Peer(Peer { connection, address, spare_socket: listener }))),
            // The root is not listening yet, has a full backlog, or has exited.
            Err(Errno::CONNREFUSED | Errno::AGAIN) if !is_of_address || began.elapsed() <= HELD => {
                check_cancelled()?;
                pause(attempt);
            }
            Err(Errno::CONNREFUSED | Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(cannot_reach(error)),
        }
    }
    Err(Error::internal("the rendezvous socket was never reached"))
}

/// RAII guard of the lock that this user's ranks hold while electing a root.
struct Election {
    directory: File,
    /// The file with the chosen name.
    path: PathBuf,
}

impl Election {
    /// Waits for the lock. Returns `None` if no directory belongs to this user alone.
    fn enter(id: &UniqueId, check_cancelled: &dyn Fn() -> Result) -> Result<Option<Self>> {
        let user = geteuid().as_raw();
        // Not configurable, because all ranks of a user must use the same directory.
        let paths = [format!("/run/user/{user}/libnccl"), format!("/tmp/libnccl-{user}")];
        let mut directories = paths.into_iter().map(PathBuf::from);
        let Some((directory, path)) = directories.find_map(|path| Some((open_private(&path)?, path))) else {
            return Ok(None);
        };
        let began = Instant::now();
        for attempt in 0.. {
            if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
                || began.elapsed() > LOCK_LIMIT
            {
                break;
            }
            check_cancelled()?;
            pause(attempt);
        }
        Ok(Some(Self { directory, path: path.join(id.address_name()) }))
    }

    fn chosen_name(&self) -> Option<String> {
        let name = fs::read_to_string(&self.path).ok()?;
        (name.starts_with(UniqueId::SOCKET_PREFIX) && name.len() <= 64).then_some(name)
    }

    fn choose_name(&self) -> Result<String> {
        let name = UniqueId::socket_name(&random()?);
        fs::write(&self.path, &name)
            .map_err(|error| Error::system(&self.path.display().to_string(), error))?;
        Ok(name)
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        // Explicitly, because a child that was forked in the meantime also has the directory open.
        let _ = flock(&self.directory, FlockOperation::Unlock);
    }
}

/// Opens a directory, creating it if necessary. Returns `None` if other users may have access to it.
fn open_private(path: &PathBuf) -> Option<File> {
    let _ = fs::DirBuilder::new().mode(0o700).create(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = File::from(open(path, flags, Mode::empty()).ok()?);
    let found = directory.metadata().ok()?;
    (found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0).then_some(directory)
}

//! Finds the root for an id. The rank that binds the abstract socket named by the id is the root; the other ranks connect to it.
//!
//! The first process to bind an abstract name owns it. The name for an address in `NCCL_COMM_ID` can be guessed, so another user
//! may bind it first. While electing the root, a rank with such an id therefore holds the lock of a directory that only its user
//! can write to. If another user owns the name, the rank chooses a random name and writes it to a file in this directory for the
//! other ranks.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SocketAddrUnix, bind, connect, listen};
use rustix::process::geteuid;

use crate::bootstrap::unique_id::{UniqueId, random};
use crate::bootstrap::wire::{create_socket, is_same_user, pause};
use crate::diag::debug;
use crate::diag::error::{Error, Result};
use crate::shm::layout::MAX_RANKS;

/// If no connection to the name of an address is accepted for this long, the name is assumed to belong to another user.
const HELD: Duration = Duration::from_secs(1);

/// The longest wait for another rank's election. A process that is stopped during its election must not block all other ranks.
const LOCK_LIMIT: Duration = Duration::from_secs(20);

pub(super) enum Role {
    Root(OwnedFd),
    Peer(Peer),
}

pub(super) struct Peer {
    pub(super) connection: OwnedFd,
    pub(super) address: SocketAddrUnix,
    /// The socket to bind if this peer replaces the root: the process may have no file descriptors left by then.
    pub(super) spare_socket: OwnedFd,
}

pub(super) fn find_root(id: &UniqueId, check_cancelled: &dyn Fn() -> Result) -> Result<Role> {
    let election = if id.is_of_address { Election::enter(id, check_cancelled)? } else { None };
    // Only if its root exists. Otherwise the name may be from an earlier job, and ranks that use another directory do not
    // have it.
    if let Some(chosen) = election.as_ref().and_then(Election::chosen_name)
        && let Some(role) = find_root_at(&chosen, Name::Chosen, check_cancelled)?
    {
        return Ok(role);
    }
    let kind = if id.is_of_address { Name::OfAddress } else { Name::Secret };
    if let Some(role) = find_root_at(&UniqueId::socket_name(&id.public), kind, check_cancelled)? {
        return Ok(role);
    }
    let taken = || Error::system("the rendezvous socket belongs to another user", Errno::ACCESS);
    let chosen = election.as_ref().ok_or_else(taken)?.choose_name()?;
    debug::warn(|| {
        format!("another user has the rendezvous socket of NCCL_COMM_ID; the ranks meet at {chosen}")
    });
    find_root_at(&chosen, Name::Secret, check_cancelled)?.ok_or_else(taken)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    /// Random: only the ranks have it.
    Secret,
    /// Derived from an address: another user may have bound it.
    OfAddress,
    /// Chosen in an earlier election. Never bound again.
    Chosen,
}

/// Connects to the root at a name, or becomes the root. Returns `None` if another user has the name, or if it is a
/// [`Name::Chosen`] without a root.
fn find_root_at(name: &str, kind: Name, check_cancelled: &dyn Fn() -> Result) -> Result<Option<Role>> {
    let cannot_reach = |error| Error::system("the rendezvous socket cannot be reached", error);
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(cannot_reach)?;
    let began = Instant::now();
    for attempt in 0.. {
        let listener = create_socket().map_err(cannot_reach)?;
        match if kind == Name::Chosen { Err(Errno::ADDRINUSE) } else { bind(&listener, &address) } {
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
            Err(Errno::CONNREFUSED) if kind == Name::Chosen => return Ok(None),
            // The root is not listening yet, has a full backlog, or has exited.
            Err(Errno::CONNREFUSED | Errno::AGAIN) if kind == Name::Secret || began.elapsed() <= HELD => {
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
    path: PathBuf,
    /// The name of the file that contains the chosen name. Opened relative to the checked `directory`.
    file: String,
}

const MAX_NAME: usize = 64;

impl Election {
    /// Waits for the lock, for at most [`LOCK_LIMIT`]. Returns `None` if no directory belongs to this user alone.
    fn enter(id: &UniqueId, check_cancelled: &dyn Fn() -> Result) -> Result<Option<Self>> {
        let user = geteuid().as_raw();
        // Not configurable, because all ranks of a user must use the same directory.
        let paths = [format!("/run/user/{user}/libnccl"), format!("/tmp/libnccl-{user}")];
        let mut directories = paths.into_iter().map(PathBuf::from);
        let Some((directory, path)) = directories.find_map(|path| Some((open_private(&path)?, path))) else {
            return Ok(None);
        };
        let (began, mut attempt) = (Instant::now(), 0);
        let is_locked = || flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok();
        while !is_locked() && began.elapsed() <= LOCK_LIMIT {
            check_cancelled()?;
            pause(attempt);
            attempt += 1;
        }
        Ok(Some(Self { directory, path, file: id.address_name() }))
    }

    fn open(&self, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(&self.directory, &self.file, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    fn chosen_name(&self) -> Option<String> {
        let mut name = String::new();
        self.open(OFlags::RDONLY).ok()?.take(MAX_NAME as u64 + 1).read_to_string(&mut name).ok()?;
        (name.starts_with(UniqueId::SOCKET_PREFIX) && name.len() <= MAX_NAME).then_some(name)
    }

    fn choose_name(&self) -> Result<String> {
        let name = UniqueId::socket_name(&random()?);
        let file = self.open(OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC);
        file.and_then(|mut file| file.write_all(name.as_bytes()))
            .map_err(|error| Error::system(&self.path.join(&self.file).display().to_string(), error))?;
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn chosen_name_without_a_root_is_not_used() {
        let mut id = UniqueId::generate().unwrap();
        id.is_of_address = true;
        let Some(election) = Election::enter(&id, &|| Ok(())).unwrap() else {
            println!(
                "skipped: chosen_name_without_a_root_is_not_used, which needs a directory for elections"
            );
            return;
        };
        let file = election.path.join(&election.file);
        let chosen = election.choose_name().unwrap();
        drop(election);
        let role = |place: &str| match find_root(&id, &|| Ok(())).unwrap() {
            Role::Root(listener) => Some(listener),
            Role::Peer(peer) => {
                assert_eq!(peer.address.abstract_name(), Some(place.as_bytes()));
                None
            }
        };
        let usual = UniqueId::socket_name(&id.public);
        let _root = role("").unwrap();
        assert!(role(&usual).is_none());
        // A chosen name is preferred if it has a root.
        let _other = find_root_at(&chosen, Name::Secret, &|| Ok(())).unwrap();
        assert!(role(&chosen).is_none());
        fs::remove_file(file).unwrap();
    }

    #[test]
    fn chosen_name_is_only_read_and_written_in_the_directory_that_was_checked() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("elections");
        let directory = open_private(&path).unwrap();
        let election = Election { directory, path: path.clone(), file: "chosen".into() };
        assert_eq!(election.chosen_name(), None);
        let name = election.choose_name().unwrap();
        assert_eq!(election.chosen_name(), Some(name.clone()));
        // Another user's directory replaces it, with a link to a file of this user.
        let (moved, victim) = (parent.path().join("moved"), parent.path().join("victim"));
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(&victim, "libnccl-cpu-victim").unwrap();
        symlink(&victim, path.join("chosen")).unwrap();
        assert_eq!(election.chosen_name(), Some(name));
        let name = election.choose_name().unwrap();
        assert_eq!(fs::read_to_string(moved.join("chosen")).unwrap(), name);
        // A link in the right directory is not followed either.
        fs::remove_file(moved.join("chosen")).unwrap();
        symlink(&victim, moved.join("chosen")).unwrap();
        assert_eq!(election.chosen_name(), None);
        assert!(election.choose_name().unwrap_err().text.contains("elections/chosen"));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "libnccl-cpu-victim");
    }
}

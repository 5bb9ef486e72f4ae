//! The election of the root at an address that others can guess, that of `NCCL_COMM_ID`, while its name may be another
//! user's: names of abstract sockets belong to whoever takes them first.
//!
//! Ranks of a user elect the root one after another, in a folder that only this user can write to. The first who finds the
//! usual name taken chooses one at random, which nobody else can have taken, and leaves it there for the others. It also
//! holds if the usual name becomes free meanwhile.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, openat};
use rustix::process::geteuid;

use crate::bootstrap::socket::pause;
use crate::bootstrap::unique_id::{UniqueId, random};
use crate::diag::error::{Error, Result};

/// The time for which the election of another rank is waited for: a process that was stopped in it must not hold up all.
const LOCK_LIMIT: Duration = Duration::from_secs(20);

/// The right to elect, until it is dropped.
#[derive(Debug)]
pub(super) struct Election {
    folder: File,
    path: PathBuf,
    /// The file with the name that was chosen last.
    chosen: String,
}

impl Election {
    /// Waits until no other rank of this user elects; `None` if there is no folder of this user alone.
    pub(super) fn enter(id: &UniqueId, check_cancelled: &dyn Fn() -> Result) -> Result<Option<Self>> {
        let user = geteuid().as_raw();
        // No variable says where: all ranks of a user have to come to the same folder.
        let folders = [format!("/run/user/{user}/libnccl"), format!("/tmp/libnccl-{user}")];
        let Some((folder, path)) = folders.into_iter().find_map(|path| Some((private(&path)?, path.into())))
        else {
            return Ok(None);
        };
        let began = Instant::now();
        for attempt in 0.. {
            if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok()
                || began.elapsed() > LOCK_LIMIT
            {
                break;
            }
            check_cancelled()?;
            pause(attempt);
        }
        Ok(Some(Self { folder, path, chosen: id.address_name() }))
    }

    /// Returns the name that was chosen last.
    pub(super) fn chosen(&self) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.folder, &self.chosen, flags, Mode::empty()).ok()?);
        let mut name = String::new();
        file.take(64).read_to_string(&mut name).ok()?;
        name.starts_with(UniqueId::SOCKET_PREFIX).then_some(name)
    }

    /// Chooses a name that nobody knows, which the other ranks find.
    pub(super) fn choose(&self) -> Result<String> {
        let name = UniqueId::socket_name(&random()?);
        let path = self.path.join(&self.chosen);
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::TRUNC
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let written = openat(&self.folder, &self.chosen, flags, Mode::RUSR | Mode::WUSR)
            .map_err(Into::into)
            .and_then(|file| File::from(file).write_all(name.as_bytes()));
        written.map_err(|error| Error::system(&path.display().to_string(), error))?;
        Ok(name)
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the folder open too.
        let _ = flock(&self.folder, FlockOperation::Unlock);
    }
}

/// Opens the folder, which is created if it does not exist, if nobody but this user can write to it.
fn private(path: &str) -> Option<File> {
    let _ = fs::DirBuilder::new().mode(0o700).create(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = File::from(open(Path::new(path), flags, Mode::empty()).ok()?);
    let found = folder.metadata().ok()?;
    (found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0).then_some(folder)
}

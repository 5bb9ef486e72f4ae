//! The examined machine: its files, and the environment of a job.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use itertools::Itertools;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use rustix::fs::{Access, access, statfs};
use rustix::process::{Resource, Rlimit, getrlimit};

use crate::file;

/// The files with a control group's memory limit, in version 2 and in version 1.
pub(crate) const MEMORY_LIMITS: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];
pub(crate) const MEMORY_USES: [&str; 2] = ["memory.current", "memory.usage_in_bytes"];

/// The files below a root, the environment, and other data from the kernel. Tests replace them.
#[derive(Debug)]
pub(crate) struct System {
    root: PathBuf,
    /// The variables; empty for a set-uid program, which must not read files that its user names.
    pub(crate) environment: BTreeMap<String, String>,
    /// Rust's name of the architecture.
    pub(crate) architecture: String,
    pub(crate) interfaces: Result<Vec<Interface>, String>,
    /// This process's limits for locked memory, open files and the stack. `None` means unlimited.
    pub(crate) locked_memory: Option<u64>,
    pub(crate) open_files: Rlimit,
    pub(crate) stack: Option<u64>,
    pub(crate) shared_memory: SharedMemory,
}

/// The file system in /dev/shm. `None` means no separate limit.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct SharedMemory {
    /// The total number of bytes; `used` of them are in use.
    pub(crate) size: Option<u64>,
    pub(crate) used: u64,
    /// The maximum number of files; `free_files` can still be created.
    pub(crate) files: Option<u64>,
    pub(crate) free_files: u64,
}

impl SharedMemory {
    fn here() -> Self {
        let Ok(found) = statfs("/dev/shm") else { return Self::default() };
        let block = found.f_bsize as u64;
        // Otherwise /dev/shm is a directory of another file system.
        let is_own = found.f_type == libc::TMPFS_MAGIC;
        Self {
            size: Some(found.f_blocks * block).filter(|size| is_own && *size > 0),
            used: (found.f_blocks - found.f_bfree) * block,
            files: Some(found.f_files).filter(|files| *files > 0),
            free_files: found.f_ffree,
        }
    }
}

/// Returns the variables of this process; none for a set-uid program.
pub(crate) fn environment() -> BTreeMap<String, String> {
    let lossy = |text: OsString| text.to_string_lossy().into_owned();
    libnccl::internal::environment::variables().map(|(name, value)| (lossy(name), lossy(value))).collect()
}

impl System {
    pub(crate) fn here() -> Self {
        Self {
            root: "/".into(),
            environment: environment(),
            architecture: std::env::consts::ARCH.into(),
            interfaces: Interface::all(),
            locked_memory: getrlimit(Resource::Memlock).current,
            open_files: getrlimit(Resource::Nofile),
            stack: getrlimit(Resource::Stack).current,
            shared_memory: SharedMemory::here(),
        }
    }

    /// Returns an absolute path of the examined machine, prefixed with the root.
    pub(crate) fn place(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        if self.root == Path::new("/") {
            return path.into();
        }
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the path on the examined machine, without the root.
    pub(crate) fn path(&self, place: &Path) -> PathBuf {
        match place.strip_prefix(&self.root) {
            Ok(rest) => Path::new("/").join(rest),
            Err(_) => place.into(),
        }
    }

    pub(crate) fn is_readable_file(&self, path: impl AsRef<Path>) -> bool {
        let place = self.place(path);
        place.is_file() && access(place, Access::READ_OK).is_ok()
    }

    /// Reads a file of at most 16 MiB; `None` if it is longer or cannot be read.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        const MOST: u64 = 16 << 20;
        let mut bytes = vec![];
        file::open_to_read(&self.place(path)).ok()?.take(MOST + 1).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 <= MOST).then(|| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads a file of one line, without the spaces around it.
    pub(crate) fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(self.read(path)?.trim().to_owned())
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.place(path).exists()
    }

    /// Returns the reason why this process cannot read and write a file or directory; `None` if it can.
    pub(crate) fn denial(&self, path: impl AsRef<Path>) -> Option<io::Error> {
        access(self.place(path), Access::READ_OK | Access::WRITE_OK).err().map(io::Error::from)
    }

    /// Returns the names in a directory, sorted; none if it cannot be read.
    pub(crate) fn names(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.place(directory)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).sorted().collect()
    }

    /// Returns the entries of a directory, as paths of the examined machine.
    pub(crate) fn children(&self, directory: impl AsRef<Path>) -> Vec<PathBuf> {
        let directory = directory.as_ref();
        self.names(directory).iter().map(|name| directory.join(name)).collect()
    }

    /// Returns the directories of this process's control groups for a controller, each followed by its ancestors.
    pub(crate) fn control_groups(&self, controller: &str) -> Vec<PathBuf> {
        let mut groups = Vec::new();
        for line in self.read("/proc/self/cgroup").unwrap_or_default().lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            // Version 2 has no controllers here.
            if controllers.is_empty() || controllers.split(',').any(|name| name == controller) {
                // A container sees its own group as the root of the hierarchy.
                let group = Path::new("/sys/fs/cgroup").join(controllers).join(path.trim_start_matches('/'));
                let above = group.ancestors().take_while(|directory| directory.starts_with("/sys/fs/cgroup"));
                groups.extend(above.map(Path::to_owned));
            }
        }
        groups
    }

    /// Returns the number in the first of these files that has one.
    pub(crate) fn number(&self, directory: &Path, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.line(directory.join(name))?.parse().ok())
    }

    /// Returns the value of a variable; `None` if it is unset or empty, which counts as unset almost everywhere.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the software that runs this container; `None` if there is no sign of a container.
    pub(crate) fn container(&self) -> Option<&'static str> {
        let is_set = |name| self.variable(name).is_some();
        let signs = [
            (self.exists("/.dockerenv"), "Docker"),
            (self.exists("/run/.containerenv"), "Podman"),
            (is_set("KUBERNETES_SERVICE_HOST"), "Kubernetes"),
            (is_set("APPTAINER_CONTAINER") || is_set("SINGULARITY_CONTAINER"), "Apptainer"),
        ];
        signs.into_iter().find_map(|(is_there, container)| is_there.then_some(container))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) is_up: bool,
    /// True if the interface also has a carrier.
    pub(crate) is_running: bool,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Interface {
    pub(crate) fn all() -> Result<Vec<Self>, String> {
        let mut all = BTreeMap::new();
        for found in getifaddrs().map_err(|error| error.desc().to_owned())? {
            let interface = all.entry(found.interface_name.clone()).or_insert_with(|| Self {
                name: found.interface_name,
                is_up: found.flags.contains(InterfaceFlags::IFF_UP),
                is_running: found.flags.contains(InterfaceFlags::IFF_RUNNING),
                addresses: Vec::new(),
            });
            let address = found.address.as_ref();
            let v4 = address.and_then(|address| Some(IpAddr::from(address.as_sockaddr_in()?.ip())));
            let v6 = address.and_then(|address| Some(IpAddr::from(address.as_sockaddr_in6()?.ip())));
            interface.addresses.extend(v4.or(v6));
        }
        Ok(all.into_values().collect())
    }
}

/// Formats an interface as `eth0 10.0.0.1 (down)`.
impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.addresses.iter().try_for_each(|address| write!(f, " {address}"))?;
        match (self.is_up, self.is_running, self.addresses.is_empty()) {
            (false, ..) => f.write_str(" (down)"),
            (_, false, _) => f.write_str(" (no carrier)"),
            (.., true) => f.write_str(" (no address)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/system.rs"]
mod tests;

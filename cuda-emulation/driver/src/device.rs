//! Devices.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use rustix::system::sysinfo;

use crate::handle::{ContextId, PoolId};

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    /// The handle of its primary context, active or not.
    pub(crate) primary: ContextId,
    /// The flags for its primary context.
    pub(crate) primary_flags: u32,
    /// The number of times that its primary context was retained and not released.
    pub(crate) retained: usize,
    /// Its default pool.
    pub(crate) default_pool: PoolId,
    /// The pool that allocations come from.
    pub(crate) pool: PoolId,
}

/// Returns the number of bytes that this process can use: the host's memory, or less if a control group has less.
pub(crate) fn host_memory() -> usize {
    static BYTES: LazyLock<usize> = LazyLock::new(|| {
        let info = sysinfo();
        let (units, unit) = (info.totalram as u64, u64::from(info.mem_unit));
        let total = usize::try_from(units.saturating_mul(unit)).unwrap_or(usize::MAX);
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        groups.lines().filter_map(limit_of_group).fold(total, usize::min)
    });
    *BYTES
}

/// Returns the least limit of a control group, a line of `/proc/self/cgroup`, and of those that it is in.
fn limit_of_group(line: &str) -> Option<usize> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (root, file) = match fields.next()? {
        "" => ("/sys/fs/cgroup", "memory.max"),
        controllers if controllers.split(',').any(|one| one == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let group = Path::new(root).join(fields.next()?.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(root));
    // A group without a limit has a word in place of the number, or one that no host has.
    let limits = groups.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok());
    limits.min()
}

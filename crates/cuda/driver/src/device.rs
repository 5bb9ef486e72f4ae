//! Devices.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use rustix::system::sysinfo;

use crate::handle::{ContextId, PoolId};

#[derive(Debug)]
pub(crate) struct Device {
    /// The handle of the primary context, active or not.
    pub(crate) primary: ContextId,
    pub(crate) primary_flags: u32,
    pub(crate) retained: usize,
    pub(crate) default_pool: PoolId,
    pub(crate) pool: PoolId,
}

/// Returns the memory available to this process: the host's, or the limit of its control group.
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

/// Returns the lowest limit of a control group and its ancestors. `line` is one of `/proc/self/cgroup`.
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

//! Devices.

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

/// Returns the memory of a device in bytes: that of the host.
pub(crate) fn total_memory() -> usize {
    let info = sysinfo();
    let (units, unit) = (info.totalram as u64, u64::from(info.mem_unit));
    usize::try_from(units.saturating_mul(unit)).unwrap_or(usize::MAX)
}

//! Memory pools: where stream-ordered allocations come from.
//!
//! Memory is not kept for reuse, so a pool only counts, and keeps the attributes that programs set.

use std::collections::BTreeMap;

/// A memory pool.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Its device.
    pub(crate) device: usize,
    /// True if it is a device's default pool, which cannot be destroyed.
    pub(crate) is_default: bool,
    /// The attributes that can be set, by code.
    pub(crate) attributes: BTreeMap<u32, u64>,
    /// Bytes in use.
    pub(crate) used: u64,
    /// The most bytes that were in use.
    pub(crate) high: u64,
}

impl Pool {
    /// Creates a pool.
    pub(crate) fn new(device: usize, is_default: bool) -> Self {
        Self { device, is_default, attributes: BTreeMap::new(), used: 0, high: 0 }
    }

    /// Counts an allocation.
    pub(crate) fn add(&mut self, length: usize) {
        self.used += length as u64;
        self.high = self.high.max(self.used);
    }

    /// Counts a free.
    pub(crate) fn remove(&mut self, length: usize) {
        self.used = self.used.saturating_sub(length as u64);
    }
}

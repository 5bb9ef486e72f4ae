//! Memory pools: where stream-ordered allocations come from.
//!
//! Memory is not kept for reuse, so a pool only counts, and keeps the attributes that programs set.

use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// Whether it is a device's default pool, which cannot be destroyed.
    pub(crate) is_default: bool,
    /// The settable attributes by code.
    pub(crate) attributes: BTreeMap<u32, u64>,
    pub(crate) used: u64,
    /// The high-water mark of `used`.
    pub(crate) high: u64,
}

impl Pool {
    pub(crate) fn new(device: usize, is_default: bool) -> Self {
        Self { device, is_default, attributes: BTreeMap::new(), used: 0, high: 0 }
    }

    pub(crate) fn add(&mut self, length: usize) {
        self.used += length as u64;
        self.high = self.high.max(self.used);
    }

    pub(crate) fn remove(&mut self, length: usize) {
        self.used = self.used.saturating_sub(length as u64);
    }
}

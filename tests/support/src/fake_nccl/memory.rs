//! The memory that the fake's `ncclMemAlloc` returns.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;

/// The alignment that windows need.
const PAGE: usize = 4096;

/// Live allocations, which are freed on drop.
#[derive(Default)]
pub(super) struct Memory {
    allocations: BTreeMap<usize, (Layout, *mut u8)>,
    /// Added to the address of each allocation, so that it is not a multiple of a page.
    pub(super) misalignment: usize,
}

impl Memory {
    pub(super) fn allocate(&mut self, bytes: usize) -> *mut c_void {
        let Ok(layout) = Layout::from_size_align(bytes.max(1).saturating_add(self.misalignment), PAGE) else {
            return ptr::null_mut();
        };
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let address = start.wrapping_add(self.misalignment);
        self.allocations.insert(address.addr(), (layout, start));
        address.cast()
    }

    /// Frees an allocation; ignores other addresses, which a rule may have made the fake write.
    pub(super) fn free(&mut self, address: *mut c_void) {
        if let Some((layout, start)) = self.allocations.remove(&address.addr()) {
            // SAFETY: allocated with this layout, and no longer in the map.
            unsafe { dealloc(start, layout) };
        }
    }

    /// Returns `memory` for the address of an allocation.
    pub(super) fn name(&self, address: usize) -> Option<String> {
        self.allocations.contains_key(&address).then(|| "memory".into())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (layout, start) in self.allocations.values() {
            // SAFETY: allocated with this layout, and not freed yet.
            unsafe { dealloc(*start, *layout) };
        }
    }
}

//! Memory from `ncclMemAlloc`, as elements.

use std::ptr;
use std::slice;

use super::{OK, last_error};

/// Memory that is freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) start: *mut i32,
    pub(crate) count: usize,
}

// SAFETY: every rank uses its own memory, or synchronizes with the others.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(count: usize) -> Self {
        let mut memory = ptr::null_mut();
        let code = nccl!(ncclMemAlloc(&mut memory, count * size_of::<i32>()));
        assert_eq!(code, OK, "{}", last_error());
        Self { start: memory.cast(), count }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.count * size_of::<i32>()
    }

    /// Returns the elements, which no one else may use meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn elements(&self) -> &mut [i32] {
        // SAFETY: `count` initialized elements; the tests ensure that no one else uses them.
        unsafe { slice::from_raw_parts_mut(self.start, self.count) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        assert_eq!(nccl!(ncclMemFree(self.start.cast())), OK, "{}", last_error());
    }
}

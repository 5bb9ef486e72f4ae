//! Memory from `ncclMemAlloc`, as elements.
#![allow(dead_code, unreachable_pub)]

use std::ptr;
use std::slice;

use super::common::{OK, last_error};
use crate::nccl;

/// Freed at the end.
#[derive(Debug)]
pub struct Memory {
    pub start: *mut i32,
    pub count: usize,
}

// SAFETY: every rank uses its own memory, or what ranks have settled between them.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(count: usize) -> Self {
        let mut memory = ptr::null_mut();
        let code = nccl!(ncclMemAlloc(&mut memory, count * size_of::<i32>()));
        assert_eq!(code, OK, "{}", last_error());
        Self { start: memory.cast(), count }
    }

    pub fn bytes(&self) -> usize {
        self.count * size_of::<i32>()
    }

    /// The elements, which nobody else uses meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub fn elements(&self) -> &mut [i32] {
        // SAFETY: as many elements, all zero at first, and the tests see to it that nobody else uses them.
        unsafe { slice::from_raw_parts_mut(self.start, self.count) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        assert_eq!(nccl!(ncclMemFree(self.start.cast())), OK, "{}", last_error());
    }
}

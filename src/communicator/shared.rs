#![allow(unsafe_code)] // Calls ncclCommAbort.

use std::ffi::CStr;
use std::sync::Arc;

use super::state::State;
use crate::backend::{Library, call};
use crate::{Result, sys};

/// The part of a communicator that it shares with its abort handles.
pub(super) struct Shared {
    pub(super) library: Arc<Library>,
    /// Live until [`State`] is ended.
    pub(super) raw: sys::ncclComm_t,
    pub(super) state: State,
    /// The `commName` that NCCL was given, to which it keeps a pointer.
    pub(super) name: Option<Arc<CStr>>,
}

// SAFETY: `state` lets one thread at a time into NCCL with the pointer.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Ends the communicator without waiting.
    ///
    /// # Safety
    /// [`State`] has told the caller to end it.
    pub(super) unsafe fn abort(&self) -> Result<()> {
        // SAFETY: live; the caller guarantees that no other thread enters NCCL with it any more.
        unsafe { call!(self.library, ncclCommAbort(self.raw)) }.map(drop)
    }
}

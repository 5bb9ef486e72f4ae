//! The groups of NCCL that are open on a thread, as far as the implementation reports them.

use std::ffi::CStr;

use super::library::{Library, parameter};
use crate::error::{Error, Result};

/// A parameter of the CPU backend, which NCCL does not have: the number of groups that are open on the calling thread.
const KEY: &CStr = c"LIBNCCL_OPEN_GROUPS";

impl Library {
    /// Checks, in a debug build, that only this crate's groups are open on this thread, `own` in number. In a group of other
    /// code, a call would return before it has run, and with it the borrow of its buffers would end.
    #[inline]
    pub(crate) fn check_open_groups(&self, call: &'static str, own: usize) -> Result<()> {
        if cfg!(debug_assertions) { self.check_open_groups_for_debug(call, own) } else { Ok(()) }
    }

    fn check_open_groups_for_debug(&self, call: &'static str, own: usize) -> Result<()> {
        if !self.has_open_groups.get_or_init(|| self.open_groups().is_some()) {
            return Ok(());
        }
        match self.open_groups() {
            Some(open) if open != own => Err(foreign_group(call, open.saturating_sub(own))),
            _ => Ok(()),
        }
    }

    /// Returns the number of open groups, or `None` if the implementation does not report it.
    fn open_groups(&self) -> Option<usize> {
        // SAFETY: the creator of the library has guaranteed that its functions are NCCL's.
        unsafe { parameter(&self.functions, KEY) }?.parse().ok()
    }
}

#[cold]
fn foreign_group(call: &'static str, open: usize) -> Error {
    let problem = format!(
        "other code has called ncclGroupStart on this thread {open} times without ncclGroupEnd, so that the call would return \
         before it runs; expected no open group but those of this crate"
    );
    Error::usage(call, problem)
}

//! The state of the calling thread: whether it has a group open.

use std::cell::Cell;

use crate::{Error, Result};

thread_local! {
    /// Set while this thread has a group open, of any implementation.
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
}

/// Returns an error if this thread is between the start and the end of a group.
#[inline]
pub(crate) fn check_no_open_group(call: &'static str) -> Result<()> {
    if IS_OPEN.get() { Err(open_error(call)) } else { Ok(()) }
}

/// Records that this thread has opened or ended a group.
#[inline]
pub(crate) fn set_open(is_open: bool) {
    IS_OPEN.set(is_open);
}

#[cold]
fn open_error(call: &'static str) -> Error {
    Error::usage(call, "a group is open on this thread; only methods of the group can be called inside it")
}

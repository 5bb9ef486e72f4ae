//! The guard of NCCL calls, and the groups that are open on a thread.
#![allow(unsafe_code)] // Aborts the communicator.

use std::cell::Cell;
use std::sync::Arc;

use super::objects::Object;
use super::shared::Shared;
use super::state::{Left, Purpose};
use crate::backend::Library;
use crate::error::{Error, Result};

thread_local! {
    /// Set while this thread has a group open, of any implementation.
    static HAS_OPEN_GROUP: Cell<bool> = const { Cell::new(false) };
}

/// RAII guard that marks this thread as inside an NCCL call with a communicator.
///
/// Its drop runs the teardowns of objects that were deferred meanwhile, and aborts the communicator if that was requested.
/// It is dropped before everything that NCCL may use until then is freed.
pub(crate) struct CallGuard<'s>(pub(super) &'s Arc<Shared>);

impl<'s> CallGuard<'s> {
    #[inline]
    pub(crate) fn new(shared: &'s Arc<Shared>, call: &'static str, purpose: Purpose) -> Result<Self> {
        shared.state.enter(call, purpose)?;
        Ok(Self(shared))
    }

    #[inline]
    pub(crate) fn ungrouped(shared: &'s Arc<Shared>, call: &'static str, purpose: Purpose) -> Result<Self> {
        check_no_open_group(&shared.library, call)?;
        Self::new(shared, call, purpose)
    }

    /// Enters NCCL for a short call on an object of the communicator: the owner waits for it.
    pub(crate) fn for_object(shared: &'s Arc<Shared>, call: &'static str) -> Result<Self> {
        shared.state.enter_for_object(call)?;
        Ok(Self(shared))
    }
}

impl Drop for CallGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let left = self.0.state.leave();
        if left != Left::Done {
            finish_leaving(self.0, left);
        }
    }
}

#[cold]
#[inline(never)]
fn finish_leaving(shared: &Arc<Shared>, mut left: Left) {
    let mut destroyed = Vec::new();
    while left == Left::Deferred {
        destroyed.append(&mut shared.deferred.destroy(shared));
        left = shared.state.leave();
    }
    if left == Left::Abort {
        // SAFETY: the state has chosen this thread to tear it down.
        let _ = unsafe { shared.abort() };
    }
    destroyed.into_iter().for_each(Object::free);
}

/// Returns an error if a group is open on this thread: a group of this crate, of any implementation, or of other code, if
/// `library` can detect it.
#[inline]
pub(crate) fn check_no_open_group(library: &Library, call: &'static str) -> Result<()> {
    if has_open_group() { Err(open_error(call)) } else { library.check_open_groups(call, 0) }
}

/// Returns whether this crate has opened a group on this thread.
#[inline]
pub(crate) fn has_open_group() -> bool {
    HAS_OPEN_GROUP.get()
}

#[inline]
pub(crate) fn set_open_group(is_open: bool) {
    HAS_OPEN_GROUP.set(is_open);
}

#[cold]
fn open_error(call: &'static str) -> Error {
    Error::usage(call, "a group is open on this thread; only methods of the group can be called inside it")
}

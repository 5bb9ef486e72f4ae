//! The stay of a thread in NCCL: with one communicator, or in a group.
#![allow(unsafe_code)] // Aborts the communicator.

use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::Arc;

use super::object::free_all;
use super::shared::Shared;
use super::state::{Left, Purpose};
use crate::backend::Library;
use crate::error::{Error, Result};

thread_local! {
    /// Set while this thread has a group open, of any implementation.
    static HAS_OPEN_GROUP: Cell<bool> = const { Cell::new(false) };
}

/// The stay of a thread in NCCL with a communicator. Its drop leaves NCCL, after the teardown of objects that was deferred
/// meanwhile, and aborts the communicator if that was requested: it comes before everything that NCCL may use until then is
/// freed.
pub(crate) struct Inside<S: Borrow<Arc<Shared>>>(S);

impl<S: Borrow<Arc<Shared>>> Inside<S> {
    #[inline]
    pub(crate) fn new(shared: S, call: &'static str, purpose: Purpose) -> Result<Self> {
        shared.borrow().state.enter(call, purpose)?;
        Ok(Self(shared))
    }

    #[inline]
    pub(crate) fn ungrouped(shared: S, call: &'static str, purpose: Purpose) -> Result<Self> {
        check_no_open_group(&shared.borrow().library, call)?;
        Self::new(shared, call, purpose)
    }

    /// Enters NCCL as an object of the communicator does: the owner waits for it.
    pub(crate) fn for_object(shared: S, call: &'static str) -> Result<Self> {
        shared.borrow().state.enter_for_object(call)?;
        Ok(Self(shared))
    }

    /// Returns the stay of a communicator in a group, for which `state` was entered.
    #[inline]
    pub(crate) fn of_group(shared: S) -> Self {
        Self(shared)
    }
}

impl<S: Borrow<Arc<Shared>>> Drop for Inside<S> {
    #[inline]
    fn drop(&mut self) {
        let shared = self.0.borrow();
        let left = shared.state.leave();
        if left != Left::Done {
            finish_leaving(shared, left);
        }
    }
}

/// Runs the teardowns that were deferred while this thread was in NCCL, and aborts the communicator if an abort handle has
/// requested it.
#[cold]
#[inline(never)]
fn finish_leaving(shared: &Arc<Shared>, mut left: Left) {
    let mut destroyed = Vec::new();
    while left == Left::Deferred {
        destroyed.append(&mut shared.deferred.destroy(shared));
        left = shared.state.leave();
    }
    if left == Left::Abort {
        // SAFETY: the state has told this thread to end it.
        let _ = unsafe { shared.abort() };
    }
    free_all(destroyed);
}

/// Returns an error if a group is open on this thread: one of this crate, of any implementation, or one of other code, as far
/// as `library` tells.
#[inline]
pub(crate) fn check_no_open_group(library: &Library, call: &'static str) -> Result<()> {
    if has_open_group() { Err(open_error(call)) } else { library.check_open_groups(call, 0) }
}

/// Returns `true` if this crate has opened a group on this thread.
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

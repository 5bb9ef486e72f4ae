//! The state of a communicator: whether its owner may enter NCCL, and which thread tears it down.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
#[cfg(not(all(test, loom)))]
use std::{sync::atomic::AtomicU32, thread};

#[cfg(all(test, loom))]
use loom::{sync::atomic::AtomicU32, thread};

use crate::error::{Error, Result};

/// Set while the owner is in a call of NCCL or in a group.
const INSIDE: u32 = 1;
/// Set after a group of the communicator has failed: only queries and the teardown are allowed.
const FAILED: u32 = 2;
/// Set when an [`AbortHandle`](crate::communicator::AbortHandle) has requested an abort.
const ABORT: u32 = 4;
/// Set when the handle is given up: the thread that set this flag tears the communicator down.
const ENDED: u32 = 8;
/// Set together with [`INSIDE`] during a short call on an object of the communicator, perhaps on another thread. The call waits
/// for no other rank, so the owner can wait for the call.
const OBJECT: u32 = 16;
/// Set from a suspension to the end of the resumption: NCCL has freed memory that operations need, but would start them
/// nevertheless.
const SUSPENDED: u32 = 32;
/// Set when the teardown of an object was deferred, until a thread that leaves NCCL runs it.
const DEFERRED: u32 = 64;

/// The flags of one communicator, shared with its abort handles.
#[derive(Debug, Default)]
pub(crate) struct State {
    flags: AtomicU32,
}

/// The purpose for which the owner enters NCCL. Its discriminant contains the flags that do not prevent entering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Purpose {
    /// An operation, or the creation of an object or a child.
    Work = 0,
    /// A resumption or a finalization.
    WhileSuspended = SUSPENDED,
    /// A query or the teardown.
    Query = SUSPENDED | FAILED,
}

/// The remaining task of a thread that leaves NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Done,
    /// Abort the communicator, as an abort handle has requested.
    Abort,
    /// Run the deferred teardowns, then call `leave` again: the thread has not left NCCL yet.
    Deferred,
}

impl State {
    /// Enters NCCL. Pairs with [`leave`](Self::leave).
    #[inline]
    pub(crate) fn enter(&self, call: &'static str, purpose: Purpose) -> Result<()> {
        // The fast path: no flag is set.
        if self.flags.compare_exchange(0, INSIDE, Acquire, Relaxed).is_ok() {
            return Ok(());
        }
        self.enter_slow_path(INSIDE, call, purpose)
    }

    /// Enters NCCL for a call on an object of the communicator, on any thread. Does not wait for the owner, whose call may
    /// wait for other ranks.
    pub(crate) fn enter_for_object(&self, call: &'static str) -> Result<()> {
        self.enter_slow_path(INSIDE | OBJECT, call, Purpose::Query)
    }

    #[inline]
    fn enter_slow_path(&self, inside: u32, call: &'static str, purpose: Purpose) -> Result<()> {
        match self.set_inside(inside, purpose as u32) {
            0 => Ok(()),
            flags => Err(entry_error(call, flags)),
        }
    }

    /// Sets the flags `inside`, and returns 0. If a flag that is not in `allowed` is already set, changes nothing and returns the
    /// current flags. (A `Result` would be returned through memory.)
    #[cold]
    #[inline(never)]
    fn set_inside(&self, inside: u32, allowed: u32) -> u32 {
        loop {
            let flags = self.load_without_object();
            if flags & !(allowed | DEFERRED) != 0 {
                return flags;
            }
            if self.flags.compare_exchange(flags, flags | inside, Acquire, Relaxed).is_ok() {
                return 0;
            }
        }
    }

    #[cfg(all(test, loom))]
    pub(crate) fn is_inside(&self) -> bool {
        self.flags.load(Acquire) & INSIDE != 0
    }

    /// Returns the flags once no call on an object is in progress.
    fn load_without_object(&self) -> u32 {
        loop {
            let flags = self.flags.load(Acquire);
            if flags & OBJECT == 0 {
                return flags;
            }
            thread::yield_now();
        }
    }

    /// Leaves NCCL, unless there are deferred teardowns to run first.
    #[inline]
    #[must_use]
    pub(crate) fn leave(&self) -> Left {
        // The fast path: no other flag is set.
        if self.flags.compare_exchange(INSIDE, 0, Release, Relaxed).is_ok() {
            return Left::Done;
        }
        self.leave_slow_path()
    }

    #[cold]
    #[inline(never)]
    fn leave_slow_path(&self) -> Left {
        let leave = |flags| {
            let left = flags & !(INSIDE | OBJECT);
            Some(match flags & (ABORT | ENDED | DEFERRED) {
                DEFERRED => flags & !DEFERRED,
                others if others & ABORT != 0 => left | ENDED,
                _ => left,
            })
        };
        let before = self.flags.fetch_update(AcqRel, Acquire, leave).unwrap_or_else(|flags| flags);
        match before & (ABORT | ENDED | DEFERRED) {
            DEFERRED => Left::Deferred,
            others if others & (ABORT | ENDED) == ABORT => Left::Abort,
            _ => Left::Done,
        }
    }

    /// Records that the teardown of an object is deferred. The caller must then try to enter and leave NCCL, because the owner
    /// may have left before the flag was set.
    pub(crate) fn set_deferred(&self) {
        self.flags.fetch_or(DEFERRED, AcqRel);
    }

    pub(crate) fn is_abort_requested(&self) -> bool {
        self.flags.load(Relaxed) & ABORT != 0
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.flags.load(Relaxed) & FAILED != 0
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.flags.load(Relaxed) & ENDED != 0
    }

    pub(crate) fn fail(&self) {
        self.flags.fetch_or(FAILED, Relaxed);
    }

    pub(crate) fn set_suspended(&self, is_suspended: bool) {
        let changed = |flags| Some(if is_suspended { flags | SUSPENDED } else { flags & !SUSPENDED });
        let _ = self.flags.fetch_update(Relaxed, Relaxed, changed);
    }

    /// Gives up the handle. Returns whether the caller has to tear the communicator down.
    #[must_use]
    pub(crate) fn end(&self) -> bool {
        loop {
            let flags = self.load_without_object();
            if self.flags.compare_exchange(flags, flags | ENDED, AcqRel, Relaxed).is_ok() {
                return flags & ENDED == 0;
            }
        }
    }

    /// Requests an abort. Returns whether the calling thread must perform the abort, because the owner is not in NCCL.
    #[must_use]
    pub(crate) fn abort(&self) -> bool {
        let abort = |flags| {
            let ended = if flags & INSIDE == 0 { ENDED } else { 0 };
            Some(flags | ABORT | ended)
        };
        let before = self.flags.fetch_update(AcqRel, Acquire, abort).unwrap_or_else(|flags| flags);
        before & (INSIDE | ENDED) == 0
    }
}

#[cold]
fn entry_error(call: &'static str, flags: u32) -> Error {
    if flags & (ABORT | ENDED) != 0 {
        Error::Aborted { call }
    } else if flags & FAILED != 0 {
        Error::usage(call, "the communicator was in a group that failed; it can only be aborted or destroyed")
    } else if flags & (INSIDE | SUSPENDED) == SUSPENDED {
        Error::usage(call, "the communicator is suspended; call `resume` first")
    } else {
        Error::usage(call, "the communicator is in use: in an open group, or by another thread")
    }
}

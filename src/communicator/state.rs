//! The state of a communicator, which decides whether its owner may enter NCCL and which thread ends it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
#[cfg(not(all(test, loom)))]
use std::{sync::atomic::AtomicU32, thread};

#[cfg(all(test, loom))]
use loom::{sync::atomic::AtomicU32, thread};

use crate::{Error, Result};

/// Set while the owner is in a call of NCCL or in a group.
const INSIDE: u32 = 1;
/// Set after a group that failed: only queries and the end are allowed.
const FAILED: u32 = 2;
/// Set when an [`AbortHandle`](crate::AbortHandle) has requested the end.
const ABORT: u32 = 4;
/// Set when the handle is given up: the thread that set this flag ends the communicator.
const ENDED: u32 = 8;
/// Set together with [`INSIDE`] while an object of the communicator ends, perhaps on another thread. It waits for no other
/// rank, so the owner waits for it.
const OBJECT: u32 = 16;
/// Set while nothing is inside, if operations are recorded: so the fast path of an operation that is not pays nothing.
const RECORDED: u32 = 32;

/// The flags of one communicator, shared with its abort handles.
#[derive(Debug, Default)]
pub(crate) struct State {
    flags: AtomicU32,
    /// The flags while nothing is inside and nothing has happened: [`RECORDED`] or none.
    idle: AtomicU32,
}

impl State {
    /// Enters NCCL for an operation. Pairs with [`leave`](Self::leave).
    #[inline]
    pub(crate) fn enter(&self, call: &'static str) -> Result<()> {
        if self.try_enter() {
            return Ok(());
        }
        match self.enter_slow_path() {
            0 => Ok(()),
            flags => Err(entry_error(call, flags)),
        }
    }

    /// Enters NCCL for an operation if nothing else has to be looked at.
    #[inline(always)]
    pub(crate) fn try_enter(&self) -> bool {
        self.flags.compare_exchange(0, INSIDE, Acquire, Relaxed).is_ok()
    }

    /// Enters NCCL for an operation that is recorded if nothing else has to be looked at.
    #[inline(always)]
    pub(crate) fn try_enter_recorded(&self) -> bool {
        self.flags.compare_exchange(RECORDED, INSIDE, Acquire, Relaxed).is_ok()
    }

    /// Enters NCCL for an operation. Returns 0, or the flags that forbid it, for [`entry_error`].
    #[cold]
    pub(crate) fn enter_slow_path(&self) -> u32 {
        self.set_inside(INSIDE, 0)
    }

    /// Makes the entries of operations take the slow path, where they are recorded.
    pub(crate) fn set_recorded(&self) {
        self.idle.store(RECORDED, Relaxed);
        // Of what is inside, the end sets the flag.
        let record = |flags| (flags & INSIDE == 0).then_some(flags | RECORDED);
        let _ = self.flags.fetch_update(AcqRel, Relaxed, record);
    }

    /// Returns `true` if a thread is in a call of NCCL, or in a group.
    pub(crate) fn is_inside(&self) -> bool {
        self.flags.load(Acquire) & INSIDE != 0
    }

    /// Enters NCCL for a query or for the end, which are allowed after a failure too.
    pub(crate) fn enter_for_query(&self, call: &'static str) -> Result<()> {
        match self.set_inside(INSIDE, FAILED) {
            0 => Ok(()),
            flags => Err(entry_error(call, flags)),
        }
    }

    /// Enters NCCL to end an object of the communicator, on any thread. It does not wait for the owner, whose call may
    /// wait for other ranks.
    pub(crate) fn enter_for_object(&self, call: &'static str) -> Result<()> {
        match self.set_inside(INSIDE | OBJECT, FAILED) {
            0 => Ok(()),
            flags => Err(entry_error(call, flags)),
        }
    }

    /// Sets flags that include [`INSIDE`], unless others than the `allowed` are set: then it returns the flags, else 0. (A
    /// number, as a `Result` would pass through memory in each call of [`enter`](Self::enter).)
    #[cold]
    #[inline(never)]
    fn set_inside(&self, inside: u32, allowed: u32) -> u32 {
        loop {
            let flags = self.load_without_object();
            if flags & !(allowed | RECORDED) != 0 {
                return flags;
            }
            let entered = flags & !RECORDED | inside;
            if self.flags.compare_exchange(flags, entered, Acquire, Relaxed).is_ok() {
                return 0;
            }
        }
    }

    /// Returns the flags once no object is ending.
    fn load_without_object(&self) -> u32 {
        loop {
            let flags = self.flags.load(Acquire);
            if flags & OBJECT == 0 {
                return flags;
            }
            thread::yield_now();
        }
    }

    /// Leaves NCCL. Returns `true` if the owner now has to end the communicator, as an abort handle has requested it.
    #[inline]
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // The fast path: no other flag is set.
        let idle = self.idle.load(Relaxed);
        self.flags.compare_exchange(INSIDE, idle, Release, Relaxed).is_err() && self.leave_slow_path()
    }

    #[cold]
    #[inline(never)]
    fn leave_slow_path(&self) -> bool {
        let leave = |flags| {
            let left = flags & !(INSIDE | OBJECT) | self.idle.load(Relaxed);
            Some(if left & ABORT != 0 { left | ENDED } else { left })
        };
        let before = self.flags.fetch_update(AcqRel, Acquire, leave).unwrap_or_else(|flags| flags);
        before & (ABORT | ENDED) == ABORT
    }

    /// Returns `true` if an abort handle has requested the end.
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

    /// Gives up the handle, once no object is ending. Returns `true` if the owner has to end the communicator.
    #[must_use]
    pub(crate) fn end(&self) -> bool {
        loop {
            let flags = self.load_without_object();
            if self.flags.compare_exchange(flags, flags | ENDED, AcqRel, Relaxed).is_ok() {
                return flags & ENDED == 0;
            }
        }
    }

    /// Requests the end. Returns `true` if the calling thread has to end the communicator, as the owner is not in NCCL.
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
pub(crate) fn entry_error(call: &'static str, flags: u32) -> Error {
    if flags & (ABORT | ENDED) != 0 {
        Error::Aborted { call }
    } else if flags & FAILED != 0 {
        Error::usage(call, "the communicator was in a group that failed; it can only be aborted or destroyed")
    } else {
        Error::usage(call, "the communicator is in use: in an open group, or by another thread")
    }
}

#[cfg(test)]
mod tests {
    use super::State;
    use crate::Error;

    #[test]
    fn second_entry_is_rejected_until_leave() {
        let state = State::default();
        state.enter("one").unwrap();
        assert!(matches!(state.enter("two"), Err(Error::InvalidUsage { call: "two", .. })));
        assert!(!state.leave());
        state.enter("three").unwrap();
    }

    #[test]
    fn failed_communicator_allows_queries_only() {
        let state = State::default();
        state.fail();
        assert!(state.is_failed() && state.enter("work").is_err());
        state.enter_for_query("query").unwrap();
        assert!(!state.leave());
        assert!(state.end() && !state.end());
    }

    #[test]
    fn idle_communicator_is_ended_by_the_abort_handle() {
        let state = State::default();
        assert!(state.abort());
        assert!(!state.abort(), "only once");
        assert!(matches!(state.enter("work"), Err(Error::Aborted { call: "work" })));
        assert!(matches!(state.enter_for_query("query"), Err(Error::Aborted { call: "query" })));
        assert!(!state.end(), "not by the owner");
    }

    #[test]
    fn busy_communicator_is_ended_by_its_owner() {
        let state = State::default();
        state.enter("work").unwrap();
        assert!(!state.abort() && state.is_abort_requested());
        assert!(state.leave(), "the owner has to");
        assert!(state.is_ended() && !state.abort() && !state.end());
    }

    #[test]
    fn object_ends_while_the_owner_is_outside_only() {
        let state = State::default();
        state.enter("work").unwrap();
        assert!(matches!(state.enter_for_object("end"), Err(Error::InvalidUsage { call: "end", .. })));
        assert!(!state.leave());
        state.fail();
        state.enter_for_object("end").unwrap();
        assert!(!state.abort(), "not while it ends");
        assert!(state.leave(), "but afterwards");
        assert!(matches!(state.enter_for_object("end"), Err(Error::Aborted { call: "end" })));
    }

    /// Fails if the owner gets an error, or ends the communicator, while an object of another thread ends.
    #[test]
    fn owner_waits_for_the_end_of_an_object() {
        use std::sync::atomic::AtomicBool;
        use std::sync::atomic::Ordering::SeqCst;

        for _ in 0..2000 {
            let (state, is_inside) = (State::default(), AtomicBool::new(false));
            let is_alone = || assert!(!is_inside.swap(true, SeqCst), "two threads at a time");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if state.enter_for_object("end").is_ok() {
                        is_alone();
                        is_inside.store(false, SeqCst);
                        assert!(!state.leave());
                    }
                });
                state.enter("work").unwrap();
                is_alone();
                is_inside.store(false, SeqCst);
                assert!(!state.leave());
                state.enter_for_query("query").unwrap();
                assert!(!state.leave());
                assert!(state.end());
                is_alone();
            });
        }
    }

    #[test]
    fn recorded_communicator_takes_the_slow_path_only_to_enter() {
        let state = State::default();
        state.set_recorded();
        assert!(!state.try_enter() && state.try_enter_recorded() && state.is_inside());
        assert!(!state.try_enter_recorded() && !state.leave());
        state.enter("work").unwrap();
        assert!(!state.leave() && !state.try_enter() && !state.is_inside());
        state.enter_for_object("end").unwrap();
        assert!(!state.leave());
        state.fail();
        assert!(matches!(state.enter("work"), Err(Error::InvalidUsage { .. })));
        state.enter_for_query("query").unwrap();
        assert!(!state.leave() && state.abort() && !state.end());

        // It begins to record while its owner is inside.
        let state = State::default();
        state.enter("work").unwrap();
        state.set_recorded();
        assert!(!state.leave() && !state.try_enter() && state.try_enter_recorded());
    }

    /// Checks many interleavings of an owner and two abort handles.
    #[test]
    fn concurrent_aborts_end_it_exactly_once() {
        for _ in 0..2000 {
            let state = State::default();
            let ends = std::thread::scope(|scope| {
                let aborts = [0, 1].map(|_| scope.spawn(|| u32::from(state.abort())));
                let owner = scope.spawn(|| {
                    let worked = state.enter("work").is_ok();
                    u32::from(worked && state.leave()) + u32::from(state.end())
                });
                aborts.into_iter().chain([owner]).map(|thread| thread.join().unwrap()).sum::<u32>()
            });
            assert_eq!(ends, 1);
        }
    }
}

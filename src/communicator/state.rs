//! Who may enter NCCL with a communicator: its owner, or nobody any more.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::{Error, Result};

/// The owner is in a call of NCCL's, or in a group.
const INSIDE: u32 = 1;
/// It was in something that failed; only its end remains.
const FAILED: u32 = 2;
/// An [`AbortHandle`](crate::AbortHandle) wants it to end.
const ABORT: u32 = 4;
/// The handle is given up: whoever set this, and no one else, ends it.
const ENDED: u32 = 8;

/// The flags of one communicator, shared with its abort handles.
#[derive(Debug, Default)]
pub(crate) struct State(AtomicU32);

impl State {
    /// The owner enters NCCL, to work. Pairs with [`leave`](Self::leave).
    #[inline]
    pub(crate) fn enter(&self, call: &'static str) -> Result<()> {
        match self.0.compare_exchange(0, INSIDE, Acquire, Relaxed) {
            Ok(_) => Ok(()),
            Err(flags) => Err(refusal(call, flags)),
        }
    }

    /// The owner enters NCCL, to ask or to end: also after a failure.
    pub(crate) fn enter_to_ask(&self, call: &'static str) -> Result<()> {
        let enter = |flags| if flags & !FAILED == 0 { Some(flags | INSIDE) } else { None };
        self.0.fetch_update(Acquire, Relaxed, enter).map(drop).map_err(|flags| refusal(call, flags))
    }

    /// The owner is out again. `true` if it now has to end the communicator, as an abort handle wants.
    #[inline]
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // Nothing else is set, as nearly always.
        self.0.compare_exchange(INSIDE, 0, Release, Relaxed).is_err() && self.leave_slowly()
    }

    #[cold]
    #[inline(never)]
    fn leave_slowly(&self) -> bool {
        let leave = |flags| {
            let left = flags & !INSIDE;
            Some(if left & ABORT != 0 { left | ENDED } else { left })
        };
        let before = self.0.fetch_update(AcqRel, Acquire, leave).unwrap_or_else(|flags| flags);
        before & (ABORT | ENDED) == ABORT
    }

    /// Whether an abort handle wants the owner, who is inside, to stop.
    pub(crate) fn is_abort_wanted(&self) -> bool {
        self.0.load(Relaxed) & ABORT != 0
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.0.load(Relaxed) & FAILED != 0
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.0.load(Relaxed) & ENDED != 0
    }

    pub(crate) fn fail(&self) {
        self.0.fetch_or(FAILED, Relaxed);
    }

    /// The owner gives the handle up. `true` if it is the owner who has to end it.
    #[must_use]
    pub(crate) fn end(&self) -> bool {
        self.0.fetch_or(ENDED, AcqRel) & ENDED == 0
    }

    /// An abort handle wants the end. `true` if its thread has to do it, as the owner is not inside NCCL.
    #[must_use]
    pub(crate) fn abort(&self) -> bool {
        let abort = |flags| {
            let ended = if flags & INSIDE == 0 { ENDED } else { 0 };
            Some(flags | ABORT | ended)
        };
        let before = self.0.fetch_update(AcqRel, Acquire, abort).unwrap_or_else(|flags| flags);
        before & (INSIDE | ENDED) == 0
    }
}

#[cold]
fn refusal(call: &'static str, flags: u32) -> Error {
    if flags & (ABORT | ENDED) != 0 {
        Error::Aborted { call }
    } else if flags & FAILED != 0 {
        Error::usage(call, "the communicator was in a group that failed; it can only be aborted or destroyed")
    } else {
        Error::usage(call, "the communicator is in a group that is open")
    }
}

#[cfg(test)]
mod tests {
    use super::State;
    use crate::Error;

    #[test]
    fn one_at_a_time() {
        let state = State::default();
        state.enter("one").unwrap();
        assert!(matches!(state.enter("two"), Err(Error::InvalidUsage { call: "two", .. })));
        assert!(!state.leave());
        state.enter("three").unwrap();
    }

    #[test]
    fn a_failure_leaves_questions() {
        let state = State::default();
        state.fail();
        assert!(state.is_failed() && state.enter("work").is_err());
        state.enter_to_ask("ask").unwrap();
        assert!(!state.leave());
        assert!(state.end() && !state.end());
    }

    #[test]
    fn an_idle_communicator_is_ended_by_the_abort_handle() {
        let state = State::default();
        assert!(state.abort());
        assert!(!state.abort(), "only once");
        assert!(matches!(state.enter("work"), Err(Error::Aborted { call: "work" })));
        assert!(matches!(state.enter_to_ask("ask"), Err(Error::Aborted { call: "ask" })));
        assert!(!state.end(), "not by the owner");
    }

    #[test]
    fn a_busy_communicator_is_ended_by_its_owner() {
        let state = State::default();
        state.enter("work").unwrap();
        assert!(!state.abort() && state.is_abort_wanted());
        assert!(state.leave(), "the owner has to");
        assert!(state.is_ended() && !state.abort() && !state.end());
    }

    /// Whatever the interleaving, exactly one ends it.
    #[test]
    fn exactly_one_ends_it() {
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

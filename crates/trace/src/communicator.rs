//! A communicator, as its calls show it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libnccl::sys::ncclResult_t;
use libnccl::{
    CommunicatorEvent, CommunicatorId, DataType, Error, Membership, Observer, OperationEnd, OperationStart,
    Recorder, ResultCode,
};

use crate::arguments::Arguments;

/// A communicator, and the recorder that is told of its operations.
pub(crate) struct Communicator {
    recorder: Recorder,
    /// The number of children so far, which is the same on all ranks.
    children: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the last operation.
    last: u64,
    /// The number of the first operation whose call, or group, is not complete.
    open: Option<u64>,
    /// Set if that has returned `ncclInProgress`.
    is_in_progress: bool,
    /// An operation has failed.
    has_error: bool,
    has_failed: bool,
}

/// The place of an operation in a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// There is no group.
    Ungrouped,
    /// The first of its communicator.
    First,
    /// A later one.
    Later,
}

impl Communicator {
    pub(crate) fn new(membership: Membership, entries: usize) -> Self {
        let recorder = Recorder::new(membership, entries);
        Self { recorder, children: AtomicU64::new(0), state: Mutex::default() }
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    #[inline]
    pub(crate) fn membership(&self) -> &Membership {
        self.recorder.membership()
    }

    /// Returns the identity of the next child, of a color if there are several.
    pub(crate) fn id_of_child(&self, color: i32) -> Option<CommunicatorId> {
        let number = self.children.fetch_add(1, Relaxed);
        self.membership().id.map(|id| id.of_child(number, color))
    }

    /// Records an operation before its call.
    #[inline]
    pub(crate) fn begin(&self, arguments: &Arguments, place: Place) {
        let Arguments { operation, data_type, elements: [sent, received], rank, stream } = *arguments;
        let mut state = self.lock();
        if state.is_in_progress {
            // It is complete: NCCL begins no other before.
            self.end(&mut state, Ok(()));
        }
        let number = state.last + 1;
        state.last = number;
        if place != Place::Later {
            state.open = Some(number);
        }
        let mut start = OperationStart::new(self.membership(), operation, number).on_stream(stream);
        if let Some(first) = state.open.filter(|_| place != Place::Ungrouped) {
            start = start.in_group(first);
        }
        let data_type = data_type.and_then(|raw| DataType::ALL.get(raw.0 as usize).copied());
        let peer = rank.and_then(|rank| usize::try_from(rank).ok());
        self.recorder.on_start(&start.elements(data_type, sent, received).ranks(peer, None));
    }

    /// Records the result of the last operation, or of its group. Returns `true` if it is the first that has failed.
    #[inline]
    pub(crate) fn finish(&self, code: ncclResult_t) -> bool {
        let mut state = self.lock();
        match code {
            ncclResult_t::ncclSuccess => self.end(&mut state, Ok(())),
            ncclResult_t::ncclInProgress => state.is_in_progress = true,
            code => return self.fail(&mut state, code),
        }
        false
    }

    /// Records that nothing is in progress.
    pub(crate) fn complete(&self) {
        let mut state = self.lock();
        if state.is_in_progress {
            self.end(&mut state, Ok(()));
        }
    }

    /// Records that the communicator has failed, and with it an operation that is in progress. Returns `false` if it had
    /// failed before.
    #[cold]
    pub(crate) fn fail_all(&self, code: ncclResult_t) -> bool {
        let mut state = self.lock();
        self.fail(&mut state, code);
        if state.has_failed {
            return false;
        }
        state.has_failed = true;
        self.recorder.on_communicator(self.membership(), CommunicatorEvent::Failed);
        true
    }

    /// Records the end of the communicator.
    pub(crate) fn ended(&self) {
        let _state = self.lock();
        self.recorder.on_communicator(self.membership(), CommunicatorEvent::Ended);
    }

    /// Returns `true` while an operation is in progress.
    pub(crate) fn is_inside(&self) -> bool {
        self.lock().open.is_some()
    }

    #[cold]
    fn fail(&self, state: &mut State, code: ncclResult_t) -> bool {
        let (message, detail) = (Box::default(), Box::default());
        let error = Error::Nccl { call: "operation", code: ResultCode::from_raw(code), message, detail };
        self.end(state, Err(&error));
        !std::mem::replace(&mut state.has_error, true)
    }

    #[inline]
    fn end(&self, state: &mut State, result: Result<(), &Error>) {
        state.is_in_progress = false;
        if let Some(first) = state.open.take() {
            self.recorder.on_end(&OperationEnd::new(self.membership(), [first, state.last], result));
        }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

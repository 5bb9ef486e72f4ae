//! The state of a communicator, derived from its calls.

use std::hint;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use libnccl::error::ResultCode;
use libnccl::observer::{
    CallWord, Children, CommunicatorEvent, CommunicatorId, Membership, Observer, OperationEnd, OperationStart,
};
use libnccl::sys::ncclResult_t;
use libnccl::{DataType, Error};
use libnccl_observe::Recorder;

use crate::arguments::Arguments;

/// A communicator, and the recorder of its operations.
///
/// Any thread may record. The changing state is in atomics under a spin lock: a mutex would take as long as all other work.
pub(crate) struct Communicator {
    recorder: Recorder,
    children: Children,
    is_locked: AtomicBool,
    /// The number of the last operation.
    last: AtomicU64,
    /// The number of the first operation whose call, or group, is not complete; 0 if there is none.
    open: AtomicU64,
    /// Set if the call of operation `open` has returned `ncclInProgress`.
    is_in_progress: AtomicBool,
    /// Set if an operation has failed.
    has_error: AtomicBool,
    has_failed: AtomicBool,
}

/// A guard that holds the lock of a communicator.
struct Locked<'a>(&'a AtomicBool);

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// The position of an operation in a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// No group is open.
    Ungrouped,
    /// The first operation of its communicator in the group.
    First,
    /// A later operation of its communicator in the group.
    Later,
}

impl Communicator {
    pub(crate) fn new(membership: Membership, entries: usize) -> Self {
        let recorder = Recorder::new(membership, entries);
        let [last, open] = [(); 2].map(|()| AtomicU64::new(0));
        let [is_locked, is_in_progress, has_error, has_failed] = [(); 4].map(|()| AtomicBool::new(false));
        let children = Children::default();
        Self { recorder, children, is_locked, last, open, is_in_progress, has_error, has_failed }
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    #[inline]
    pub(crate) fn membership(&self) -> &Membership {
        self.recorder.membership()
    }

    /// Returns the id of the next child communicator. `color` is `None` for a shrink.
    pub(crate) fn id_of_child(&self, color: Option<i32>) -> Option<CommunicatorId> {
        self.membership().id.map(|id| self.children.next(id, color))
    }

    /// Records an operation before its call.
    #[inline]
    pub(crate) fn begin(&self, arguments: &Arguments, place: Place) {
        let Arguments { operation, data_type, elements, rank, stream } = *arguments;
        let _locked = self.lock();
        if self.is_in_progress.load(Relaxed) {
            // The previous operation is complete: NCCL does not begin another one before.
            self.end(Ok(()));
        }
        let number = self.last.load(Relaxed) + 1;
        self.last.store(number, Relaxed);
        if place != Place::Later {
            self.open.store(number, Relaxed);
        }
        let data_type = data_type.and_then(|raw| DataType::ALL.get(raw.0 as usize).copied());
        let peer = rank.and_then(|rank| usize::try_from(rank).ok());
        let call = CallWord::new(operation, data_type, [peer, None]);
        let group = if place == Place::Ungrouped { 0 } else { self.open.load(Relaxed) };
        let start = OperationStart::new(self.membership(), call, [number, group], elements, stream, None);
        self.recorder.on_start(&start);
    }

    /// Records the result of the last operation, or of its group. Returns `true` if this is the communicator's first failure.
    #[inline]
    pub(crate) fn finish(&self, code: ncclResult_t) -> bool {
        let _locked = self.lock();
        match code {
            ncclResult_t::ncclSuccess => self.end(Ok(())),
            ncclResult_t::ncclInProgress => self.is_in_progress.store(true, Relaxed),
            code => return self.fail(code),
        }
        false
    }

    /// Records that an operation in progress is complete.
    pub(crate) fn complete(&self) {
        if self.is_in_progress.load(Relaxed) {
            let _locked = self.lock();
            self.end(Ok(()));
        }
    }

    /// Records that the communicator and any operation in progress have failed. Returns `true` if the communicator had not failed
    /// before.
    #[cold]
    pub(crate) fn fail_all(&self, code: ncclResult_t) -> bool {
        let _locked = self.lock();
        self.fail(code);
        if self.has_failed.swap(true, Relaxed) {
            return false;
        }
        self.recorder.on_communicator(self.membership(), CommunicatorEvent::Failed);
        true
    }

    /// Records the teardown of the communicator.
    pub(crate) fn ended(&self) {
        let _locked = self.lock();
        self.recorder.on_communicator(self.membership(), CommunicatorEvent::Ended);
    }

    /// Returns whether an operation is in progress.
    pub(crate) fn is_inside(&self) -> bool {
        self.open.load(Relaxed) > 0
    }

    #[cold]
    fn fail(&self, code: ncclResult_t) -> bool {
        let (message, detail) = (Box::default(), Box::default());
        let error = Error::Nccl { call: "operation", code: ResultCode::from_raw(code), message, detail };
        self.end(Err(&error));
        !self.has_error.swap(true, Relaxed)
    }

    #[inline]
    fn end(&self, result: Result<(), &Error>) {
        self.is_in_progress.store(false, Relaxed);
        let (first, last) = (self.open.load(Relaxed), self.last.load(Relaxed));
        if first > 0 {
            self.open.store(0, Relaxed);
            self.recorder.on_end(&OperationEnd::new(self.membership(), [first, last], result));
        }
    }

    #[inline]
    fn lock(&self) -> Locked<'_> {
        while self.is_locked.swap(true, Acquire) {
            hint::spin_loop();
        }
        Locked(&self.is_locked)
    }
}

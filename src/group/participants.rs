#![allow(unsafe_code)] // Keeps guards, whose lifetime cannot be named.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::backend::Library;
use crate::buffer::MemorySpace;
use crate::communicator::{Communicator, PendingHandle, WindowHandle, wait_until};
use crate::error::{Error, InvalidArgumentKind, Result};
use crate::observer::{CommunicatorEvent, Operation};

/// The participants of a group: its communicators, and the values that they need until the group ends.
#[derive(Debug)]
pub(crate) struct Participants<'scope> {
    library: &'scope Arc<Library>,
    /// The last communicator that joined. Most groups have only one communicator, which needs no allocation.
    last: Cell<Option<&'scope Communicator>>,
    /// The other participants; boxed, as most groups have none.
    overflow: RefCell<Option<Box<Overflow<'scope>>>>,
    /// The first error of a call. The group returns it instead of errors that follow from it.
    first_error: OnceCell<Error>,
    pub(super) phase: Cell<Phase>,
    /// Makes this neither `Send` nor `Sync`: NCCL's group belongs to the thread.
    thread: PhantomData<*mut ()>,
}

/// The state of a group, which determines how it treats operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The group collects operations, to start them.
    Open,
    /// The group collects operations, to estimate their duration.
    Simulated,
    /// The group creates communicators, and rejects operations.
    Creating,
    /// The group has ended, and rejects operations.
    Ended,
}

/// The error of a group that creates communicators and has operations. Such a group would wait for ranks that have not joined,
/// and ignore the timeout of the operation's communicator.
const MIXED: &str = "a group that creates communicators contains no operations";

/// A value that is kept only to be dropped later.
trait Guard {}

impl<T> Guard for T {}

/// The participants that few groups have.
#[derive(Default)]
pub(super) struct Overflow<'scope> {
    /// The communicators that joined before the last one.
    communicators: Vec<&'scope Communicator>,
    pub(super) pending: Vec<Rc<PendingHandle>>,
    windows: Vec<Arc<WindowHandle>>,
    /// Set if NCCL has failed to begin the creation of a communicator.
    pub(super) has_failed_init: bool,
    /// The guards of buffers. They live for `'scope`. A field with a drop cannot name this lifetime, because it is the lifetime
    /// of the group itself.
    guards: Vec<Box<dyn Guard>>,
    /// The limit of the wait for each communicator at the end of the group. Replaces the communicator's timeout.
    pub(super) timeout: Option<Duration>,
    /// Options and descriptors, which NCCL reads until the end of the group.
    pub(super) arguments: Vec<Box<dyn Any>>,
}

impl fmt::Debug for Overflow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overflow")
            .field("communicators", &self.communicators)
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

impl<'scope> Participants<'scope> {
    pub(super) fn new(library: &'scope Arc<Library>, phase: Phase) -> Self {
        Self {
            library,
            last: Cell::new(None),
            overflow: RefCell::default(),
            first_error: OnceCell::new(),
            phase: Cell::new(phase),
            thread: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn library(&self) -> &'scope Arc<Library> {
        self.library
    }

    #[inline]
    pub(crate) fn check(&self, communicator: &Communicator, operation: &'static Operation) -> Result<()> {
        if self.library.is_same(communicator.library()) && self.phase.get() == Phase::Open {
            return Ok(());
        }
        self.check_slow_path(communicator, operation)
    }

    /// Enters NCCL for an operation in this group. Returns whether the operation is its communicator's first in this group.
    #[inline]
    pub(crate) fn join(
        &self,
        communicator: &'scope Communicator,
        operation: &'static Operation,
    ) -> Result<bool> {
        let is_first = !communicator.is_in_group();
        if is_first {
            communicator.join_group(operation.name).map_err(|error| self.record_error(error))?;
            if let Some(previous) = self.last.replace(Some(communicator)) {
                self.change_overflow(|overflow| overflow.communicators.push(previous));
            }
        }
        Ok(is_first)
    }

    #[cold]
    fn check_slow_path(&self, communicator: &Communicator, operation: &'static Operation) -> Result<()> {
        if !self.library.is_same(communicator.library()) {
            let problem = "the communicator and the group belong to different libraries";
            return Err(Error::argument(operation.name, InvalidArgumentKind::Communicator, problem));
        }
        self.check_open(operation.name)?;
        let problem = if self.phase.get() == Phase::Creating {
            MIXED
        } else if !operation.is_simulated {
            "NCCL does not simulate this operation; it simulates all_reduce, reduce, all_gather and reduce_scatter"
        } else if communicator.is_nonblocking() {
            "the communicator is nonblocking; NCCL would start the operation instead of simulating it"
        } else if communicator.size() == 1 {
            "the communicator has one rank; NCCL would start the operation instead of simulating it"
        } else {
            return Ok(());
        };
        Err(Error::usage(operation.name, problem))
    }

    pub(super) fn check_open(&self, call: &'static str) -> Result<()> {
        let has_ended = self.phase.get() == Phase::Ended;
        if has_ended { Err(Error::usage(call, "the group has ended")) } else { Ok(()) }
    }

    /// Begins to create communicators. Returns an error if the group has ended, has operations, or is simulated.
    pub(super) fn begin_creation(&self) -> Result<()> {
        const CALL: &str = "init_in";
        self.check_open(CALL)?;
        let problem = if self.is_simulated() {
            "NCCL does not simulate the creation of communicators"
        } else if self.last.get().is_some() {
            MIXED
        } else {
            self.phase.set(Phase::Creating);
            return Ok(());
        };
        Err(self.record_error(Error::usage(CALL, problem)))
    }

    pub(super) fn is_simulated(&self) -> bool {
        self.phase.get() == Phase::Simulated
    }

    /// Records the error of an operation that has joined the group.
    #[cold]
    pub(crate) fn on_error(&self, communicator: &'scope Communicator, is_first: bool, error: Error) -> Error {
        // Found before NCCL was called: the last communicator to have joined has nothing queued.
        if error.code().is_none() && is_first {
            self.last.set(None);
            communicator.withdraw_from_group();
            communicator.notify_end(Err(&error));
        }
        self.record_error(error)
    }

    #[cold]
    pub(super) fn change_overflow(&self, change: impl FnOnce(&mut Overflow<'scope>)) {
        change(self.overflow.borrow_mut().get_or_insert_default());
    }

    /// Keeps the guards of buffers until the end of the group.
    ///
    /// # Safety
    /// The guards must live for `'scope`. (This is not a bound, because a call has another lifetime parameter for its buffers.)
    #[inline]
    pub(crate) unsafe fn keep_guards<K>(&self, guards: K) {
        if !mem::needs_drop::<K>() {
            return;
        }
        let guards: Box<dyn Guard + '_> = Box::new(guards);
        // SAFETY: only the lifetime changes; the guards live for `'scope`, as the caller guarantees. `OpenGroup` drops them while
        // `'scope` lasts: it is the lifetime of the reference to the group that the closure received. The closure is generic in
        // it, so everything that lives for `'scope` outlives the group, or is the group itself, which refuses operations when
        // the guards are dropped.
        let guards: Box<dyn Guard + 'static> = unsafe { mem::transmute(guards) };
        self.change_overflow(|overflow| overflow.guards.push(guards));
    }

    pub(crate) fn keep_arguments(&self, arguments: impl Any) {
        self.change_overflow(|overflow| overflow.arguments.push(Box::new(arguments)));
    }

    pub(crate) fn add_window(&self, handle: Arc<WindowHandle>) {
        self.change_overflow(|overflow| overflow.windows.push(handle));
    }

    pub(super) fn has_failed_init(&self) -> bool {
        self.overflow.borrow().as_ref().is_some_and(|overflow| overflow.has_failed_init)
    }

    /// Records an error: the whole group has failed, even if the closure ignores the error.
    #[cold]
    pub(crate) fn record_error(&self, error: Error) -> Error {
        self.first_error.get_or_init(|| error.clone());
        error
    }

    #[inline]
    pub(super) fn first_error(&self) -> Option<&Error> {
        self.first_error.get()
    }

    /// Waits for all communicators, even after one has failed, because the others still use the buffers. After the first timeout
    /// or abort, aborts the others.
    pub(super) fn wait_all(&self, call: &'static str) -> Result<()> {
        let timeout = self.overflow.borrow().as_ref().and_then(|overflow| overflow.timeout);
        let start = Instant::now();
        let (mut waiting, mut result) = (self.communicators(), Ok(()));
        wait_until(|| {
            let mut is_given_up = false;
            waiting.retain(|communicator| {
                let Poll::Ready(ended) = communicator.progress(call, start, timeout) else { return true };
                is_given_up |= matches!(ended, Err(Error::Timeout { .. } | Error::Aborted { .. }));
                if result.is_ok() {
                    result = ended;
                }
                false
            });
            if is_given_up {
                waiting.drain(..).for_each(Communicator::abort_work_in_progress);
            }
            if waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        });
        result
    }

    fn communicators(&self) -> Vec<&'scope Communicator> {
        let overflow = self.overflow.borrow();
        let others = overflow.iter().flat_map(|overflow| &overflow.communicators).copied();
        self.last.get().into_iter().chain(others).collect()
    }

    /// Takes all communicators out of the group, which has ended with this result. After a failure, first aborts work in
    /// progress, because it uses the buffers.
    #[inline]
    pub(super) fn close(&self, result: Result<(), &Error>) {
        if result.is_ok()
            && let Some(overflow) = &*self.overflow.borrow()
        {
            // Before the communicators leave, which destroys the windows that were dropped in the group.
            overflow.windows.iter().for_each(|handle| handle.resolve());
        }
        if let Some(last) = self.last.get()
            && result.is_ok()
        {
            last.leave_group(result);
            self.last.set(None);
        }
        self.phase.set(Phase::Ended);
        if result.is_err() || self.overflow.borrow().is_some() {
            self.close_slow_path(result);
        }
    }

    #[cold]
    fn close_slow_path(&self, result: Result<(), &Error>) {
        let (communicators, has_failed) = (self.communicators(), result.is_err());
        if has_failed {
            // On a GPU, a group that has failed started nothing, or was waited for.
            let on_host = |it: &&&Communicator| it.is_borrowed() || it.memory_space() == MemorySpace::Host;
            communicators.iter().filter(on_host).for_each(|it| it.abort_work_in_progress());
        }
        communicators.iter().for_each(|it| it.leave_group(result));
        if has_failed {
            communicators.iter().for_each(|it| it.shared().notify(CommunicatorEvent::Failed));
        }
        let mut guards = Vec::new();
        if let Some(overflow) = &mut *self.overflow.borrow_mut() {
            overflow.pending.iter().for_each(|handle| handle.resolve(has_failed));
            guards = mem::take(&mut overflow.guards);
        }
        // Last, as their drop may run code of other crates.
        drop(guards);
    }
}

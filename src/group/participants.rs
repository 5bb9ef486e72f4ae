use std::cell::{Cell, OnceCell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use crate::backend::Library;
use crate::collective_config::RawCollectiveConfig;
use crate::communicator::PendingHandle;
use crate::{Communicator, Error, Result, ResultCode};

/// The participants of a group: its communicators, and what they need until its end.
#[derive(Debug)]
pub(crate) struct Participants<'scope> {
    library: &'scope Arc<Library>,
    /// The last communicator to have joined. Most groups have one, which costs no allocation.
    last: Cell<Option<&'scope Communicator>>,
    /// The other participants; boxed, so that it costs most groups no more than a null pointer.
    overflow: RefCell<Option<Box<Overflow<'scope>>>>,
    /// The first error of a call, which the group returns whatever fails as a consequence.
    first_error: OnceCell<Error>,
    /// Makes this neither `Send` nor `Sync`: NCCL's group belongs to the thread.
    thread: PhantomData<*mut ()>,
}

/// The participants that few groups have.
#[derive(Debug, Default)]
struct Overflow<'scope> {
    /// The communicators that joined before the last.
    communicators: Vec<&'scope Communicator>,
    /// The communicators that the group creates.
    pending: Vec<Rc<PendingHandle>>,
    /// Set if NCCL could not create one of them.
    has_failed_init: bool,
    /// The options of the operations, which NCCL reads until the end of the group.
    configs: Vec<RawCollectiveConfig>,
}

impl Overflow<'_> {
    #[cold]
    fn release_all(&self, has_failed: bool) {
        self.communicators.iter().for_each(|communicator| communicator.leave_group(has_failed));
        self.pending.iter().for_each(|handle| handle.resolve(has_failed));
    }
}

impl<'scope> Participants<'scope> {
    pub(super) fn new(library: &'scope Arc<Library>) -> Self {
        Self {
            library,
            last: Cell::new(None),
            overflow: RefCell::default(),
            first_error: OnceCell::new(),
            thread: PhantomData,
        }
    }

    #[inline]
    pub(super) fn library(&self) -> &'scope Arc<Library> {
        self.library
    }

    /// Enters NCCL for an operation in this group. Returns `true` if it is the first one of its communicator.
    #[inline(always)]
    pub(crate) fn begin_grouped(&self, communicator: &Communicator, operation: &'static str) -> Result<bool> {
        if !self.library.is_same(communicator.library()) {
            let problem = "the communicator and the group belong to different libraries";
            return Err(self.record_error(Error::argument(operation, problem)));
        }
        communicator.join_group(operation).map_err(|error| self.record_error(error))
    }

    /// Records the result of the operation; `joined` is the result of [`begin_grouped`](Self::begin_grouped).
    #[inline(always)]
    pub(crate) fn finish_grouped(
        &self,
        communicator: &'scope Communicator,
        joined: bool,
        result: Result<ResultCode>,
    ) -> Result<()> {
        match result {
            Ok(_) => {
                if joined {
                    self.add(communicator);
                }
                Ok(())
            }
            Err(error) => Err(self.on_error(communicator, joined, error)),
        }
    }

    #[cold]
    fn on_error(&self, communicator: &'scope Communicator, joined: bool, error: Error) -> Error {
        match (joined, &error) {
            (true, Error::Nccl { .. }) => self.add(communicator),
            // Found before NCCL was called, and this communicator has nothing queued: it does not take part.
            (true, _) => communicator.leave_group(false),
            (false, _) => {}
        }
        self.record_error(error)
    }

    #[inline]
    fn add(&self, communicator: &'scope Communicator) {
        if let Some(previous) = self.last.replace(Some(communicator)) {
            self.change_overflow(|overflow| overflow.communicators.push(previous));
        }
    }

    #[cold]
    fn change_overflow(&self, change: impl FnOnce(&mut Overflow<'scope>)) {
        change(self.overflow.borrow_mut().get_or_insert_default());
    }

    /// Keeps the options of an operation alive until the end of the group.
    pub(crate) fn keep_config(&self, config: &RawCollectiveConfig) {
        self.change_overflow(|overflow| overflow.configs.push(config.clone()));
    }

    /// Leaks the options of the operations, as NCCL may still read them.
    pub(super) fn leak_configs(&self) {
        if let Some(overflow) = &mut *self.overflow.borrow_mut() {
            std::mem::forget(std::mem::take(&mut overflow.configs));
        }
    }

    /// Adds a communicator that the group creates at its end.
    pub(super) fn add_pending(&self, handle: Rc<PendingHandle>) {
        self.change_overflow(|overflow| overflow.pending.push(handle));
    }

    /// Records that a communicator could not be created.
    pub(super) fn record_failed_init(&self, error: Error) -> Error {
        self.change_overflow(|overflow| overflow.has_failed_init |= error.code().is_some());
        self.record_error(error)
    }

    pub(super) fn has_failed_init(&self) -> bool {
        self.overflow.borrow().as_ref().is_some_and(|overflow| overflow.has_failed_init)
    }

    /// Records an error, after which the whole group has failed even if the closure ignores the error.
    #[cold]
    pub(super) fn record_error(&self, error: Error) -> Error {
        self.first_error.get_or_init(|| error.clone());
        error
    }

    #[inline]
    pub(super) fn first_error(&self) -> Option<&Error> {
        self.first_error.get()
    }

    pub(super) fn try_for_each(&self, act: impl Fn(&Communicator) -> Result<()>) -> Result<()> {
        self.last.get().map_or(Ok(()), &act)?;
        match &*self.overflow.borrow() {
            Some(overflow) => overflow.communicators.iter().try_for_each(|communicator| act(communicator)),
            None => Ok(()),
        }
    }

    /// Takes all communicators out of the group, which is over.
    #[inline]
    pub(super) fn release_all(&self, has_failed: bool) {
        if let Some(last) = self.last.get() {
            last.leave_group(has_failed);
        }
        if let Some(overflow) = &*self.overflow.borrow() {
            overflow.release_all(has_failed);
        }
    }
}

#![allow(unsafe_code)] // Calls ncclGroupStart and ncclGroupEnd.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

use crate::backend::{Library, call};
use crate::{Communicator, Error, Nccl, Result, ResultCode, sys};

thread_local! {
    /// Whether this thread has a group open, of whatever implementation.
    static OPEN: Cell<bool> = const { Cell::new(false) };
}

/// An error if this thread is between a group's start and its end.
pub(crate) fn forbid_open(call: &'static str) -> Result<()> {
    if OPEN.get() {
        return Err(Error::usage(
            call,
            "a group is open on this thread, and inside it only the group's own methods can be called",
        ));
    }
    Ok(())
}

/// Operations that NCCL is to start together; see [`Nccl::group`].
#[derive(Debug)]
pub struct Group<'scope, 'env: 'scope> {
    library: Arc<Library>,
    /// The communicators that have operations in this group.
    members: RefCell<Vec<&'scope Communicator>>,
    /// What the caller is told, whatever fails as a consequence.
    first_error: RefCell<Option<Error>>,
    // Invariant, as in `std::thread::scope`; and not to be sent: NCCL's group belongs to the thread.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
    thread: PhantomData<*mut ()>,
}

impl Nccl {
    /// Collects the operations that `operations` calls on the [`Group`], and starts them together at its end.
    ///
    /// This is how one thread drives several ranks, how a rank sends and receives at the same time, and how
    /// many small operations are made one launch. As the operations run at the end of the group, their buffers
    /// have to outlive it, exactly as with [`std::thread::scope`]; one that is made inside does not compile:
    ///
    /// ```compile_fail,E0597
    /// # fn main() -> libnccl::Result<()> {
    /// # let nccl = libnccl_cpu::nccl();
    /// # let comms = nccl.init_all(&[0])?;
    /// # use libnccl::StreamRef;
    /// nccl.group(|g| {
    ///     let inside = vec![1.0_f32; 8];
    ///     g.send(&comms[0], &inside, 0, StreamRef::DEFAULT)
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0, 1])?;
    /// let mut buffers = [[1.0_f32, 2.0], [10.0, 20.0]];
    /// nccl.group(|g| {
    ///     for (comm, buffer) in comms.iter().zip(&mut buffers) {
    ///         g.all_reduce_in_place(comm, buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(buffers, [[11.0, 22.0], [11.0, 22.0]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If `operations` fails or panics, or one of its calls does, NCCL is made to drop what was queued. Other
    /// ranks may have started their part and will wait for this one's, so that the communicators that were in
    /// the group have failed: they can be aborted, destroyed and asked for their rank, and nothing else. An
    /// error that is found before anything was queued leaves them as they were.
    ///
    /// # Errors
    /// What `operations` returned; else the first error of its calls, even one that it ignored, or that of the
    /// group itself. [`Error::InvalidUsage`] inside another group.
    #[doc(alias = "ncclGroupStart")]
    #[doc(alias = "ncclGroupEnd")]
    pub fn group<'env, R, F>(&self, operations: F) -> Result<R>
    where
        F: for<'scope> FnOnce(&'scope Group<'scope, 'env>) -> Result<R>,
    {
        let group = Group {
            library: Arc::clone(&self.library),
            members: RefCell::default(),
            first_error: RefCell::default(),
            scope: PhantomData,
            env: PhantomData,
            thread: PhantomData,
        };
        let open = Open::start(&group)?;
        // If this panics or fails, `open` is dropped, which cancels the group.
        let value = operations(&group)?;
        match group.first_error.take() {
            Some(error) => Err(error),
            None => open.end().map(|()| value),
        }
    }
}

impl<'scope> Group<'scope, '_> {
    /// Runs one member call.
    pub(crate) fn queue(
        &self,
        communicator: &'scope Communicator,
        operation: &'static str,
        enqueue: impl FnOnce() -> Result<ResultCode>,
    ) -> Result<()> {
        if !self.library.is_same(communicator.library()) {
            return Err(Error::argument(
                operation,
                "the communicator and the group belong to different libraries",
            ));
        }
        communicator.usable(operation)?;
        let result = enqueue();
        // After an error of NCCL's own the group as a whole is lost, whatever the closure makes of it.
        if let Err(error @ Error::Nccl { .. }) = &result {
            self.first_error.borrow_mut().get_or_insert_with(|| error.clone());
        }
        if matches!(result, Ok(_) | Err(Error::Nccl { .. })) {
            self.members.borrow_mut().push(communicator);
        }
        result.map(drop)
    }
}

impl Group<'_, '_> {
    fn fail(&self) {
        self.members.borrow().iter().for_each(|member| member.mark_failed());
    }
}

/// NCCL's group, open on this thread. Dropped without [`end`](Self::end), it is cancelled, and its members have
/// failed.
struct Open<'g, 'scope, 'env> {
    group: &'g Group<'scope, 'env>,
}

impl<'g, 'scope, 'env> Open<'g, 'scope, 'env> {
    fn start(group: &'g Group<'scope, 'env>) -> Result<Self> {
        forbid_open("group")?;
        // SAFETY: takes nothing.
        unsafe { call!(group.library, ncclGroupStart()) }?;
        OPEN.set(true);
        Ok(Self { group })
    }

    fn end(self) -> Result<()> {
        let group = self.group;
        std::mem::forget(self);
        // SAFETY: takes nothing; the group that it ends was started on this thread, to which `self` is bound.
        let ended = unsafe { call!(group.library, ncclGroupEnd()) };
        OPEN.set(false);
        let result = ended.and_then(|code| match code {
            ResultCode::IN_PROGRESS => {
                group.members.borrow().iter().try_for_each(|member| member.wait("ncclGroupEnd"))
            }
            _ => Ok(()),
        });
        result.inspect_err(|_| group.fail())
    }
}

impl Drop for Open<'_, '_, '_> {
    /// After a call that failed, NCCL's group end drops what was queued instead of starting it (see
    /// `docs/design.md`): so fail a call on purpose. A null communicator is refused by every release.
    fn drop(&mut self) {
        let null = std::ptr::null_mut();
        let (data_type, op) = (sys::ncclDataType_t::ncclInt8, sys::ncclRedOp_t::ncclSum);
        let functions = &self.group.library.functions;
        if let (Some(all_reduce), Some(end)) = (functions.ncclAllReduce, functions.ncclGroupEnd) {
            // SAFETY: NCCL checks the communicator before it looks at anything else.
            unsafe { all_reduce(null, null, 1, data_type, op, std::ptr::null_mut(), std::ptr::null_mut()) };
            // SAFETY: takes nothing; the group was started on this thread.
            unsafe { end() };
        }
        OPEN.set(false);
        self.group.fail();
    }
}

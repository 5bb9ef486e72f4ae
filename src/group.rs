#![allow(unsafe_code)] // Calls ncclGroupStart and ncclGroupEnd.

use std::cell::{Cell, OnceCell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use crate::backend::{Library, call};
use crate::collective_config::RawCollectiveConfig;
use crate::communicator::{Operations, PendingCommunicator, PendingSlot};
use crate::{Communicator, Config, Error, Nccl, Result, ResultCode, UniqueId, sys};

thread_local! {
    /// Whether this thread has a group open, of whatever implementation.
    static OPEN: Cell<bool> = const { Cell::new(false) };
}

/// An error if this thread is between a group's start and its end.
#[inline]
pub(crate) fn forbid_open(call: &'static str) -> Result<()> {
    if OPEN.get() { Err(open_error(call)) } else { Ok(()) }
}

#[cold]
fn open_error(call: &'static str) -> Error {
    Error::usage(
        call,
        "a group is open on this thread, and inside it only the group's own methods can be called",
    )
}

/// Operations that NCCL is to start together; see [`Nccl::group`].
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::{Communicator, Group, StreamRef};
///
/// /// Sends to oneself.
/// fn echo<'scope>(
///     g: &'scope Group<'scope, '_>,
///     comm: &'scope Communicator,
///     (from, to): (&'scope [u8], &'scope mut [u8]),
/// ) -> libnccl::Result<()> {
///     g.send(comm, from, comm.rank(), StreamRef::DEFAULT)?;
///     g.recv(comm, to, comm.rank(), StreamRef::DEFAULT)
/// }
///
/// let nccl = libnccl_cpu::nccl();
/// let comms = nccl.init_all(&[0])?;
/// let mut copy = [0; 3];
/// nccl.group(|g| echo(g, &comms[0], (b"abc", &mut copy)))?;
/// assert_eq!(&copy, b"abc");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Group<'scope, 'env: 'scope> {
    members: Members<'scope>,
    // Invariant, as in `std::thread::scope`.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Who takes part in a group.
#[derive(Debug)]
pub(crate) struct Members<'scope> {
    library: &'scope Arc<Library>,
    /// The communicators that have operations in this group. Most groups have one, which costs no allocation.
    first: Cell<Option<&'scope Communicator>>,
    /// The rest; boxed, so that most groups pay for no more than a null pointer.
    more: RefCell<Option<Box<More<'scope>>>>,
    /// What the caller is told, whatever fails as a consequence.
    first_error: OnceCell<Error>,
    /// Not to be sent: NCCL's group belongs to the thread.
    thread: PhantomData<*mut ()>,
}

/// What few groups have.
#[derive(Debug, Default)]
struct More<'scope> {
    members: Vec<&'scope Communicator>,
    /// The communicators that are made in it.
    pending: Vec<Rc<PendingSlot>>,
    /// Whether NCCL could not make one.
    has_failed_to_make: bool,
    /// The operations' options, which NCCL reads until the end.
    configs: Vec<RawCollectiveConfig>,
}

impl More<'_> {
    #[cold]
    fn disband(&self, has_failed: bool) {
        self.members.iter().for_each(|member| member.leave_group(has_failed));
        self.pending.iter().for_each(|slot| slot.settle(has_failed));
    }
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
    /// the group have failed: they can be aborted, destroyed, revoked, shrunk with
    /// [`ShrinkMode::Abort`](crate::ShrinkMode::Abort) and asked, and nothing else. An error that is found before
    /// anything was queued leaves them as they were.
    ///
    /// # Errors
    /// What `operations` returned; else the first error of its calls, even one that it ignored, or that of the
    /// group itself. [`Error::InvalidUsage`] inside another group: use [`Group::group`].
    #[doc(alias = "ncclGroupStart")]
    #[doc(alias = "ncclGroupEnd")]
    pub fn group<'env, R, F>(&'env self, operations: F) -> Result<R>
    where
        F: for<'scope> FnOnce(&'scope Group<'scope, 'env>) -> Result<R>,
    {
        self.scope(operations, |open| open.end()).map(|(value, ())| value)
    }

    /// Collects operations as [`group`](Self::group) does, and estimates the time that they would take instead
    /// of starting them: microseconds, or `None` if NCCL has no estimate. Since NCCL 2.22.3.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comm = nccl.init_all(&[0])?.remove(0);
    /// let mut buffer = [1.0_f32, 2.0];
    /// let microseconds =
    ///     nccl.simulate(|g| g.all_reduce_in_place(&comm, &mut buffer, ReduceOp::Sum, StreamRef::DEFAULT))?;
    /// assert_eq!(buffer, [1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`group`](Self::group), and [`Error::Unsupported`].
    #[doc(alias = "ncclGroupSimulateEnd")]
    #[doc(alias = "ncclSimInfo_t")]
    pub fn simulate<'env, F>(&'env self, operations: F) -> Result<Option<f32>>
    where
        F: for<'scope> FnOnce(&'scope Group<'scope, 'env>) -> Result<()>,
    {
        self.require("ncclGroupSimulateEnd")?;
        self.scope(operations, |open| open.simulate()).map(|((), estimate)| estimate)
    }

    /// Opens a group, fills it, and ends it, or cancels it.
    #[inline(always)]
    fn scope<'env, R, E, F>(
        &'env self,
        operations: F,
        end: impl FnOnce(Open<'_, '_>) -> Result<E>,
    ) -> Result<(R, E)>
    where
        F: for<'scope> FnOnce(&'scope Group<'scope, 'env>) -> Result<R>,
    {
        let members = Members {
            library: &self.library,
            first: Cell::new(None),
            more: RefCell::default(),
            first_error: OnceCell::new(),
            thread: PhantomData,
        };
        let group = Group { members, scope: PhantomData, env: PhantomData };
        let open = Open::start(&group.members)?;
        // If this panics or fails, `open` is dropped, which cancels the group.
        let value = operations(&group)?;
        match group.members.first_error.get() {
            Some(error) => Err(error.clone()),
            None => end(open).map(|ended| (value, ended)),
        }
    }
}

impl<'scope, 'env> Group<'scope, 'env> {
    /// The operations of a communicator, as part of this group.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0, 1])?;
    /// let mut buffers = [[1], [2]];
    /// nccl.group(|g| {
    ///     comms.iter().zip(&mut buffers).try_for_each(|(comm, buffer)| {
    ///         g.on(comm).all_reduce_in_place(buffer, ReduceOp::Max, StreamRef::DEFAULT)
    ///     })
    /// })?;
    /// assert_eq!(buffers, [[2], [2]]);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn on(&'scope self, communicator: &'scope Communicator) -> Operations<'scope> {
        Operations::new(communicator, Some(&self.members))
    }

    /// A group in this group, for code that groups its operations by itself: they become part of this one, and
    /// start at its end.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// # use libnccl::{Communicator, Group, Result, StreamRef};
    /// fn swap<'scope>(
    ///     g: &'scope Group<'scope, '_>,
    ///     comm: &'scope Communicator,
    ///     (mine, theirs): (&'scope [i32], &'scope mut [i32]),
    ///     peer: usize,
    /// ) -> Result<()> {
    ///     g.group(|g| {
    ///         g.send(comm, mine, peer, StreamRef::DEFAULT)?;
    ///         g.recv(comm, theirs, peer, StreamRef::DEFAULT)
    ///     })
    /// }
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0, 1])?;
    /// let (mine, mut theirs) = ([[1], [2]], [[0], [0]]);
    /// nccl.group(|g| {
    ///     comms.iter().zip(mine.iter().zip(&mut theirs)).try_for_each(|(comm, (mine, theirs))| {
    ///         swap(g, comm, (mine, theirs), 1 - comm.rank())
    ///     })
    /// })?;
    /// assert_eq!(theirs, [[2], [1]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What `operations` returned. The outer group is cancelled only if its own closure returns the error.
    pub fn group<R>(&'scope self, operations: impl FnOnce(&'scope Self) -> Result<R>) -> Result<R> {
        let _inner = Inner::start(&self.members)?;
        operations(self)
    }

    /// Makes a communicator as [`Nccl::init_rank_with`] does, at the end of the group: for one thread that makes
    /// several ranks, on a GPU each after it has made another device current.
    ///
    /// NCCL wants groups that make communicators not to contain operations.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::Config;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let id = nccl.unique_id()?;
    /// let pending = nccl.group(|g| {
    ///     Ok([g.init_rank(2, 0, &id, &Config::default())?, g.init_rank(2, 1, &id, &Config::default())?])
    /// })?;
    /// for pending in pending {
    ///     assert_eq!(pending.finish()?.size(), 2);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Nccl::init_rank_with`].
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn init_rank(
        &self,
        size: usize,
        rank: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<PendingCommunicator> {
        PendingCommunicator::init_rank(self.members.library, size, rank, id, config)
            .inspect(|pending| self.members.more(|more| more.pending.push(pending.slot())))
            .inspect_err(|error| {
                self.members.note(error);
                self.members.more(|more| more.has_failed_to_make |= error.code().is_some());
            })
    }
}

impl<'scope> Members<'scope> {
    /// Comes before an operation. `true` if it is the communicator's first in this group.
    #[inline(always)]
    pub(crate) fn begin(&self, communicator: &Communicator, operation: &'static str) -> Result<bool> {
        if !self.library.is_same(communicator.library()) {
            return Err(Error::argument(
                operation,
                "the communicator and the group belong to different libraries",
            ));
        }
        communicator.join_group(operation)
    }

    /// Comes after it, with what [`begin`](Self::begin) and the call have answered.
    #[inline(always)]
    pub(crate) fn finish(
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
            Err(error) => Err(self.refused(communicator, joined, error)),
        }
    }

    #[cold]
    fn refused(&self, communicator: &'scope Communicator, joined: bool, error: Error) -> Error {
        match (joined, &error) {
            (true, Error::Nccl { .. }) => self.add(communicator),
            // Found before NCCL was called, and nothing of this communicator is queued: it was never in.
            (true, _) => communicator.leave_group(false),
            (false, _) => {}
        }
        self.note(&error);
        error
    }

    #[inline]
    fn add(&self, communicator: &'scope Communicator) {
        if let Some(first) = self.first.replace(Some(communicator)) {
            self.more(|more| more.members.push(first));
        }
    }

    #[cold]
    fn more(&self, change: impl FnOnce(&mut More<'scope>)) {
        change(self.more.borrow_mut().get_or_insert_default());
    }

    pub(crate) fn keep(&self, config: &RawCollectiveConfig) {
        self.more(|more| more.configs.push(config.clone()));
    }

    /// After an error of NCCL's own the group as a whole is lost, whatever the closure makes of it.
    fn note(&self, error: &Error) {
        if let Error::Nccl { .. } = error {
            let _ = self.first_error.set(error.clone());
        }
    }

    fn try_for_each(&self, act: impl Fn(&Communicator) -> Result<()>) -> Result<()> {
        self.first.get().map_or(Ok(()), &act)?;
        match &*self.more.borrow() {
            Some(more) => more.members.iter().try_for_each(|member| act(member)),
            None => Ok(()),
        }
    }

    /// NCCL's end of the group was not just a success.
    #[cold]
    fn close_slowly(&self, ended: Result<ResultCode>) -> Result<()> {
        // An implementation that cannot simulate has not ended the group.
        let ended = ended.inspect_err(|_| cancel(self.library));
        OPEN.set(false);
        let result = match ended {
            Ok(ResultCode::IN_PROGRESS) => self.try_for_each(|member| member.wait("ncclGroupEnd")),
            result => result.map(drop),
        };
        self.disband(result.is_err());
        result
    }

    /// The group is over.
    #[inline]
    fn disband(&self, has_failed: bool) {
        if let Some(first) = self.first.get() {
            first.leave_group(has_failed);
        }
        if let Some(more) = &*self.more.borrow() {
            more.disband(has_failed);
        }
    }
}

/// NCCL's group, open on this thread. Dropped without [`end`](Self::end), it is cancelled, and its members have
/// failed.
struct Open<'g, 'scope> {
    members: &'g Members<'scope>,
}

impl<'g, 'scope> Open<'g, 'scope> {
    #[inline(always)]
    fn start(members: &'g Members<'scope>) -> Result<Self> {
        forbid_open("group")?;
        // SAFETY: takes nothing.
        unsafe { call!(members.library, ncclGroupStart()) }?;
        OPEN.set(true);
        Ok(Self { members })
    }

    #[inline]
    fn end(self) -> Result<()> {
        // SAFETY: takes nothing; the group that it ends was started on this thread, to which `self` is bound.
        self.close(|library| unsafe { call!(library, ncclGroupEnd()) })
    }

    fn simulate(self) -> Result<Option<f32>> {
        let mut info = sys::ncclSimInfo_t::initializer();
        // SAFETY: as in `end`; `info` is initialized as NCCL wants it.
        self.close(|library| unsafe { call!(library, ncclGroupSimulateEnd(&raw mut info)) })?;
        Ok(Some(info.estimatedTime).filter(|time| *time >= 0.0))
    }

    #[inline(always)]
    fn close(self, end: impl FnOnce(&Library) -> Result<ResultCode>) -> Result<()> {
        let members = self.members;
        std::mem::forget(self);
        match end(members.library) {
            Ok(ResultCode::SUCCESS) => {
                OPEN.set(false);
                members.disband(false);
                Ok(())
            }
            ended => members.close_slowly(ended),
        }
    }
}

impl Drop for Open<'_, '_> {
    fn drop(&mut self) {
        cancel(self.members.library);
        // A communicator that could not be made may have left one more open.
        if self.members.more.borrow().as_ref().is_some_and(|more| more.has_failed_to_make) {
            self.members.library.leave_leaked_group();
        }
        OPEN.set(false);
        self.members.disband(true);
    }
}

/// Ends the group that is open on this thread, if there is one, without starting anything.
///
/// After a call that failed, NCCL's group end drops what was queued instead of starting it (see
/// `docs/design.md`): so fail a call on purpose.
#[cold]
fn cancel(library: &Library) {
    if library.is_rccl {
        fail_to_make(library);
    } else {
        fail_to_reduce(library);
    }
    if let Some(end) = library.functions.ncclGroupEnd {
        // SAFETY: takes nothing.
        unsafe { end() };
    }
}

/// A null communicator is refused by every release of NCCL.
fn fail_to_reduce(library: &Library) {
    let (null, stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (data_type, op) = (sys::ncclDataType_t::ncclInt8, sys::ncclRedOp_t::ncclSum);
    if let Some(all_reduce) = library.functions.ncclAllReduce {
        // SAFETY: NCCL checks the communicator before it looks at anything else.
        unsafe { all_reduce(null, null, 1, data_type, op, std::ptr::null_mut(), stream) };
    }
}

/// RCCL's collectives read from a null communicator; its making of one refuses what is no rank, as NCCL's does.
fn fail_to_make(library: &Library) {
    const SIZE: i32 = 1;
    const NO_RANK: i32 = -1;
    let mut none = std::ptr::null_mut();
    if let Some(init_rank) = library.functions.ncclCommInitRank {
        // SAFETY: a place to write a handle to, which it does not come to.
        unsafe { init_rank(&raw mut none, SIZE, sys::ncclUniqueId::default(), NO_RANK) };
    }
}

/// NCCL's count of groups that this thread is in, one up.
struct Inner<'g, 'scope>(&'g Members<'scope>);

impl<'g, 'scope> Inner<'g, 'scope> {
    fn start(members: &'g Members<'scope>) -> Result<Self> {
        // SAFETY: takes nothing.
        unsafe { call!(members.library, ncclGroupStart()) }.map(|_| Self(members))
    }
}

impl Drop for Inner<'_, '_> {
    /// Starts nothing: the outer group is still open.
    fn drop(&mut self) {
        // SAFETY: takes nothing; `start` has started one more.
        if let Err(error) = unsafe { call!(self.0.library, ncclGroupEnd()) } {
            self.0.note(&error);
        }
    }
}

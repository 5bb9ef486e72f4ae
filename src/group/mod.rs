//! Groups of operations that NCCL starts together, and of communicators that it creates together.
//!
//! `participants.rs` has the communicators of a group, and the values that they need until the group ends.
#![allow(unsafe_code)] // Calls ncclGroupStart and ncclGroupEnd, and begins to create communicators.

mod participants;

use std::marker::PhantomData;
use std::time::Duration;
use std::{mem, ptr};

pub(crate) use participants::Participants;
use participants::Phase;

use crate::backend::{Library, call};
use crate::communicator::{CommunicatorBuilder, HAS_OPEN_GROUP, PendingCommunicator, check_no_open_group};
use crate::error::{Error, Result, ResultCode};
use crate::nccl::Nccl;
use crate::sys;

/// A group of operations, which NCCL starts together. [`Nccl::group`] creates a group. A function can add operations to its
/// caller's group; see [`group`](Self::group).
///
/// ```
/// use libnccl::StreamRef;
///
/// let nccl = libnccl_cpu::nccl();
/// let comms = nccl.init_all(&[0, 1])?;
/// let mut received = [0.0];
/// // Rank 0 sends to rank 1.
/// nccl.group(|g| {
///     comms[0].send(&[1.0], 1, g.stream(StreamRef::DEFAULT))?;
///     comms[1].recv(&mut received, 0, g.stream(StreamRef::DEFAULT))
/// })?;
/// assert_eq!(received, [1.0]);
/// # Ok::<(), libnccl::Error>(())
/// ```
#[derive(Debug)]
pub struct Group<'scope, 'env: 'scope> {
    pub(crate) participants: Participants<'scope>,
    // Invariant, as in `std::thread::scope`.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl Nccl {
    /// Runs the closure `operations`. The operations that the closure adds to the [`Group`] then start together.
    ///
    /// Groups let one thread drive several ranks, let a rank send and receive at the same time, and merge many small operations
    /// into one launch. The operations start at the end of the group, so their buffers must outlive the group, as with
    /// [`std::thread::scope`]. Using a buffer that was created inside the closure does not compile.
    ///
    /// ```
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0, 1])?;
    /// let mut buffers = [[1.0_f32, 2.0], [10.0, 20.0]];
    /// nccl.group(|g| {
    ///     for (comm, buffer) in comms.iter().zip(&mut buffers) {
    ///         comm.all_reduce_in_place(buffer, ReduceOp::Sum, g.stream(StreamRef::DEFAULT))?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(buffers, [[11.0, 22.0], [11.0, 22.0]]);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// A buffer that an operation of the group writes can be used only once in the group. NCCL does not run the operations of a
    /// group in order, even on one communicator and one stream: it sorts them by size and runs them concurrently. If operations
    /// depend on each other, use two groups on the same stream, which run one after the other, or start the operations without a
    /// group.
    ///
    /// If the closure fails or panics, or if one of its calls fails, the group is cancelled: NCCL drops the queued operations.
    /// Other ranks may have started their operations and wait for this rank, so the communicators in the group have failed. They
    /// can only be queried, aborted, destroyed, revoked, or shrunk with
    /// [`ShrinkMode::Abort`](crate::communicator::ShrinkMode::Abort). After they have been revoked, they can also be split, or
    /// shrunk with any mode. An error that is found before the first operation is queued does not affect the communicators.
    ///
    /// # Errors
    /// Returns the first of these errors:
    /// - [`Error::InvalidUsage`] if another group is open on this thread. To nest groups, use [`Group::group`].
    /// - The error of the closure, if it returns one.
    /// - The first error of a call in the group, even if the closure ignored this error.
    /// - The error of the end of the group, which starts the operations.
    #[doc(alias = "ncclGroupStart")]
    #[doc(alias = "ncclGroupEnd")]
    #[inline]
    pub fn group<'env, R, F>(&'env self, operations: F) -> Result<R>
    where
        F: for<'scope> FnOnce(&'scope Group<'scope, 'env>) -> Result<R>,
    {
        self.scope(Phase::Open, operations, |open| open.end()).map(|(value, ())| value)
    }

    /// Groups operations as [`group`](Self::group) does, for a closure with any error type. (The closure of `group` must return
    /// this crate's error. With a generic error type, the compiler could not infer the type from `Ok(())`.)
    ///
    /// ```
    /// # use std::error::Error;
    /// # use libnccl::{ReduceOp, StreamRef};
    /// # let nccl = libnccl_cpu::nccl();
    /// # let (comms, mut loss) = (nccl.init_all(&[0])?, [0.5_f32]);
    /// nccl.try_group(|g| -> Result<(), Box<dyn Error>> {
    ///     if !loss[0].is_finite() {
    ///         return Err("the loss is not finite".into());
    ///     }
    ///     Ok(comms[0].all_reduce_in_place(&mut loss, ReduceOp::Sum, g.stream(StreamRef::DEFAULT))?)
    /// })?;
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`group`](Self::group). Any error of the closure cancels the group.
    pub fn try_group<'env, R, E, F>(&'env self, operations: F) -> Result<R, E>
    where
        E: From<Error>,
        F: for<'scope> FnOnce(&'scope Group<'scope, 'env>) -> Result<R, E>,
    {
        self.scope(Phase::Open, operations, |open| open.end()).map(|(value, ())| value)
    }

    /// Collects operations as [`group`](Self::group) does, and estimates their duration instead of starting them. Returns the
    /// estimate in microseconds, or `None` if NCCL has none. Since NCCL 2.22.3.
    ///
    /// NCCL can simulate `all_reduce`, `reduce`, `all_gather` and `reduce_scatter`, in place or not, and `barrier`, which is an
    /// all-reduce. The communicator must have several ranks and no timeout. In all other cases, an operation returns an error,
    /// because NCCL would start it instead of simulating it.
    ///
    /// ```
    /// # use libnccl::{ReduceOp, StreamRef};
    /// # let nccl = libnccl_cpu::nccl();
    /// # let (comms, mut buffer) = (nccl.init_all(&[0, 1])?, [1.0_f32]);
    /// let microseconds =
    ///     nccl.simulate(|g| comms[0].all_reduce_in_place(&mut buffer, ReduceOp::Sum, g.stream(StreamRef::DEFAULT)))?;
    /// # assert_eq!(buffer, [1.0]);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// - The errors of [`group`](Self::group).
    /// - [`Error::Unsupported`] if the library is older than NCCL 2.22.3.
    /// - [`Error::InvalidUsage`] if NCCL cannot simulate an operation. The operation is not queued.
    /// - [`Error::InvalidUsage`] if a nonblocking communicator comes from
    ///   [`from_raw`](crate::communicator::Communicator::from_raw), or was created with `NCCL_COMM_BLOCKING=0`. NCCL has then
    ///   started the operations.
    #[doc(alias = "ncclGroupSimulateEnd")]
    #[doc(alias = "ncclSimInfo_t")]
    pub fn simulate<'env, F>(&'env self, operations: F) -> Result<Option<f32>>
    where
        F: for<'scope> FnOnce(&'scope Group<'scope, 'env>) -> Result<()>,
    {
        self.require("ncclGroupSimulateEnd")?;
        self.scope(Phase::Simulated, operations, |open| open.simulate()).map(|((), estimate)| estimate)
    }

    /// Opens a group, runs `operations`, and ends or cancels the group.
    #[inline]
    fn scope<'env, R, S, E, F>(
        &'env self,
        phase: Phase,
        operations: F,
        end: impl FnOnce(OpenGroup<'_, '_>) -> Result<S>,
    ) -> Result<(R, S), E>
    where
        E: From<Error>,
        F: for<'scope> FnOnce(&'scope Group<'scope, 'env>) -> Result<R, E>,
    {
        let participants = Participants::new(&self.library, phase);
        let group = Group { participants, scope: PhantomData, env: PhantomData };
        let open = OpenGroup::start(&group.participants)?;
        // If this panics or fails, `open` is dropped, which cancels the group.
        let value = operations(&group)?;
        let ended = match group.participants.first_error() {
            Some(error) => {
                let error = error.clone();
                drop(open);
                Err(error)
            }
            None => end(open),
        };
        // The conversion of the error and the drop of the value are code of other crates.
        Ok((value, ended?))
    }
}

impl<'scope, 'env> Group<'scope, 'env> {
    /// Limits the wait for each communicator at the end of the group. This limit replaces the communicators'
    /// [timeouts](crate::config::Config::timeout). To limit a call outside a group, use
    /// [`CallOptions::timeout`](crate::operation::CallOptions::timeout). For communicators without a timeout, the wait has no
    /// limit, because they block inside NCCL. The wait for a [borrowed](crate::communicator::Communicator::borrow_raw)
    /// communicator has no limit either, because it cannot be aborted.
    pub fn timeout(&self, timeout: Duration) {
        self.participants.change_overflow(|overflow| overflow.timeout = Some(timeout));
    }

    /// Opens a group inside this one, for code that groups its own operations. These become part of the outer group, and start
    /// when it ends.
    ///
    /// ```
    /// # use libnccl::{Communicator, Group, Result, StreamRef};
    /// fn swap<'scope>(
    ///     g: &'scope Group<'scope, '_>,
    ///     comm: &'scope Communicator,
    ///     (mine, theirs): (&'scope [i32], &'scope mut [i32]),
    ///     peer: usize,
    /// ) -> Result<()> {
    ///     g.group(|g| {
    ///         comm.send(mine, peer, g.stream(StreamRef::DEFAULT))?;
    ///         comm.recv(theirs, peer, g.stream(StreamRef::DEFAULT))
    ///     })
    /// }
    ///
    /// # let nccl = libnccl_cpu::nccl();
    /// # let comm = nccl.init_all(&[0])?.remove(0);
    /// # let (mine, mut theirs) = ([1], [0]);
    /// nccl.group(|g| swap(g, &comm, (&mine, &mut theirs), 0))?;
    /// # assert_eq!(theirs, mine);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::InvalidUsage`] if the outer group has ended.
    /// - The error of `operations`.
    ///
    /// If a call in the group fails, the outer group is cancelled. Any other error of `operations` cancels the outer group only
    /// if the outer closure also returns an error.
    pub fn group<R>(&'scope self, operations: impl FnOnce(&'scope Self) -> Result<R>) -> Result<R> {
        self.participants.check_open("group")?;
        // SAFETY: has no arguments.
        unsafe { call!(self.participants.library(), ncclGroupStart()) }?;
        let _nested = NestedGroup(&self.participants);
        operations(self)
    }
}

impl CommunicatorBuilder<'_> {
    /// Creates the communicator at the end of `group`, so that one thread can create several ranks.
    ///
    /// A group that creates communicators cannot contain operations: they return an error.
    ///
    /// ```
    /// use libnccl::{Communicator, Result};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let id = nccl.unique_id()?;
    /// let ranks = nccl.group(|g| (0..2).map(|rank| nccl.communicator(2, rank, &id).init_in(g)).collect::<Result<Vec<_>>>())?;
    /// let ranks = ranks.into_iter().map(|rank| rank.finish()).collect::<Result<Vec<Communicator>>>()?;
    /// assert_eq!(ranks[1].rank(), 1);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::InvalidUsage`] if the group already has operations, or is a [simulation](Nccl::simulate).
    /// - [`Error::InvalidUsage`] if [`grow`](Self::grow) was called on this builder.
    /// - [`Error::InvalidArgument`] if the group belongs to another library.
    /// - The errors that [`init`](Self::init) detects before it waits for the other ranks.
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn init_in(self, group: &Group<'_, '_>) -> Result<PendingCommunicator> {
        let participants = &group.participants;
        participants.begin_creation()?;
        // SAFETY: the handle is added to the group, which is open.
        let begun = unsafe { self.begin_pending(participants.library()) };
        participants.change_overflow(|overflow| match &begun {
            Ok(pending) => overflow.pending.push(pending.handle()),
            Err(error) => overflow.has_failed_init |= error.code().is_some(),
        });
        begun.map_err(|error| participants.record_error(error))
    }
}

/// An NCCL group that is open on this thread. Dropping it cancels the group, and marks the group's communicators as failed.
struct OpenGroup<'g, 'scope> {
    participants: &'g Participants<'scope>,
}

impl<'g, 'scope> OpenGroup<'g, 'scope> {
    #[inline]
    fn start(participants: &'g Participants<'scope>) -> Result<Self> {
        check_no_open_group(participants.library(), "group")?;
        // SAFETY: has no arguments.
        unsafe { call!(participants.library(), ncclGroupStart()) }?;
        HAS_OPEN_GROUP.set(true);
        Ok(Self { participants })
    }

    #[inline]
    fn end(self) -> Result<()> {
        // In a group of other code, which the closure has started, nothing would run yet. Dropping this cancels the group.
        let participants = self.participants;
        let checked = participants.library().check_open_groups("group", 1);
        checked.map_err(|error| participants.record_error(error))?;
        // SAFETY: has no arguments; ends the group that was started on this thread, which `self` cannot leave.
        self.end_with(|library| unsafe { call!(library, ncclGroupEnd()) })
    }

    fn simulate(self) -> Result<Option<f32>> {
        let mut info = sys::ncclSimInfo_t::initializer();
        // SAFETY: as in `end`; `info` is initialized as NCCL requires.
        self.end_with(|library| unsafe { call!(library, ncclGroupSimulateEnd(&raw mut info)) })?;
        Ok(Some(info.estimatedTime).filter(|time| *time >= 0.0))
    }

    #[inline]
    fn end_with(self, end: impl FnOnce(&Library) -> Result<ResultCode>) -> Result<()> {
        let participants = self.participants;
        mem::forget(self);
        match end(participants.library()) {
            Ok(ResultCode::SUCCESS) => {
                HAS_OPEN_GROUP.set(false);
                participants.close(Ok(()));
                Ok(())
            }
            result => finish_end(participants, result),
        }
    }
}

/// Completes the end of a group when NCCL did not return success.
#[cold]
fn finish_end(participants: &Participants<'_>, result: Result<ResultCode>) -> Result<()> {
    let is_simulated = participants.is_simulated();
    // Closes the group if this panics.
    let open = OpenGroup { participants };
    // An implementation that cannot simulate has not ended the group.
    let result = result.inspect_err(|_| cancel(participants.library()));
    HAS_OPEN_GROUP.set(false);
    participants.phase.set(Phase::Ended);
    let result = match result {
        Ok(ResultCode::IN_PROGRESS) => participants.wait_all("group").inspect_err(|_| {
            // NCCL may still read them.
            participants.change_overflow(|overflow| mem::forget(mem::take(&mut overflow.arguments)));
        }),
        result => result.map(drop),
    };
    mem::forget(open);
    participants.close(result.as_ref().copied());
    if is_simulated {
        // Found only now, as this communicator was not known to be nonblocking.
        let problem =
            "a communicator is nonblocking; NCCL has started the operations instead of simulating them";
        return result.and(Err(Error::usage("simulate", problem)));
    }
    result
}

impl Drop for OpenGroup<'_, '_> {
    fn drop(&mut self) {
        let participants = self.participants;
        if participants.phase.get() != Phase::Ended {
            cancel(participants.library());
            // The failed creation of a communicator may leave one more group open.
            if participants.has_failed_init() {
                participants.library().end_leaked_groups();
            }
            HAS_OPEN_GROUP.set(false);
        }
        // The closure may have returned its own error, or panicked.
        let not_ended = Error::usage("group", "the group was left before its end");
        participants.close(Err(participants.first_error().unwrap_or(&not_ended)));
    }
}

/// Ends the group that is open on this thread, if there is one, without starting its operations.
///
/// After a failed call, `ncclGroupEnd` drops the queued operations instead of starting them (see `docs/design.md`),
/// so this makes a call that is certain to fail.
#[cold]
fn cancel(library: &Library) {
    const SIZE: i32 = 1;
    const INVALID_RANK: i32 = -1;
    library.keeping_last_error(|| {
        let functions = &library.functions;
        if library.refuses_null {
            if let Some(all_reduce) = functions.ncclAllReduce {
                let (data_type, op) = (sys::ncclDataType_t::ncclInt8, sys::ncclRedOp_t::ncclSum);
                let (send, receive) = (ptr::null(), ptr::null_mut());
                let (communicator, stream) = (ptr::null_mut(), ptr::null_mut());
                // SAFETY: every version of NCCL checks the communicator before all other arguments.
                unsafe { all_reduce(send, receive, 1, data_type, op, communicator, stream) };
            }
        } else if let Some(init_rank) = functions.ncclCommInitRank {
            // RCCL, NCCLX and the shim of MSCCL++ may dereference a null communicator, and reject this.
            let mut none = ptr::null_mut();
            // SAFETY: a valid out-parameter, which is not written, as the rank is checked first.
            unsafe { init_rank(&raw mut none, SIZE, sys::ncclUniqueId::default(), INVALID_RANK) };
        }
        if let Some(end) = functions.ncclGroupEnd {
            // SAFETY: has no arguments.
            unsafe { end() };
        }
    });
}

/// A group inside a group. NCCL only counts the nesting.
struct NestedGroup<'g, 'scope>(&'g Participants<'scope>);

impl Drop for NestedGroup<'_, '_> {
    /// Ends the nested group, which starts nothing, as the outer group is still open.
    fn drop(&mut self) {
        let participants = self.0;
        // SAFETY: has no arguments; ends the group that was started before this was created.
        if let Err(error) = unsafe { call!(participants.library(), ncclGroupEnd()) } {
            participants.record_error(error);
        }
    }
}

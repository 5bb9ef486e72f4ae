//! The type [`Communicator`], its raw handles, and how operations and groups enter NCCL.
#![allow(unsafe_code)] // Takes over raw handles.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::shared::{CallGuard, Origin, Shared};
use super::state::{Purpose, State};
use super::teardown::AbortHandle;
use crate::backend::{Library, call};
use crate::buffer::MemorySpace;
use crate::config::RawCollectiveConfig;
use crate::error::{Error, InvalidArgumentKind, Result, ResultCode};
use crate::nccl::Nccl;
use crate::observer::{CommunicatorEvent, Membership, Observer};
use crate::sys;

/// Polls with exponential backoff, capped at 1 ms.
pub(crate) fn wait_until<T>(mut poll: impl FnMut() -> Poll<T>) -> T {
    let mut pause = Duration::from_micros(1);
    loop {
        if let Poll::Ready(result) = poll() {
            return result;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// A communicator: one rank's membership in a set of ranks that communicate with each other.
///
/// [`Nccl::communicator`] and [`Nccl::init_all`] create communicators.
///
/// ```
/// use libnccl::{ReduceOp, StreamRef};
///
/// libnccl_cpu::run_ranks(2, |comm| {
///     let mut sum = [0; 2];
///     comm.all_reduce(&[1, comm.rank() as i32], &mut sum, ReduceOp::Sum, StreamRef::DEFAULT)?;
///     assert_eq!(sum, [comm.size() as i32, 1]);
///     comm.destroy()
/// })?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// A communicator is `Send` but not `Sync`, because NCCL's calls on one communicator are not thread-safe:
///
/// ```compile_fail,E0277
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let comm = &comms[0];
/// std::thread::scope(|s| s.spawn(|| comm.rank()).join().unwrap());
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Several threads
/// Wrap the communicator in a [`Mutex`] if a framework requires a `Sync` type. A thread that waits in NCCL holds the lock. So
/// create an [`AbortHandle`] beforehand, which can abort the communicator without the lock:
///
/// ```
/// use std::sync::{Mutex, PoisonError};
///
/// use libnccl::{ReduceOp, StreamRef};
///
/// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let (abort, comm) = (comm.abort_handle(), Mutex::new(comm));
/// let work = || {
///     // After a panic of another thread, the communicator still works, or its calls report that it has failed.
///     let comm = comm.lock().unwrap_or_else(PoisonError::into_inner);
///     comm.all_reduce_in_place(&mut [1.0], ReduceOp::Sum, StreamRef::DEFAULT)
/// };
/// std::thread::scope(|scope| scope.spawn(work).join().unwrap())?;
/// abort.abort()?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// The lock does not order the calls: the program must still make them in the same order on all ranks. Threads that lock
/// several communicators, for example for a group, must lock them in the same order to avoid a deadlock.
///
/// # Async code
/// Calls that wait for other ranks block their thread: run them in `tokio::task::spawn_blocking` or similar. On a GPU, operations
/// only enqueue work; [`wait_for`](Self::wait_for) with a zero timeout returns whether the work is complete:
///
/// ```
/// # async fn yield_now() {}
/// # use std::time::Duration;
/// # async fn wait(comm: libnccl::Communicator, stream: libnccl::StreamRef<'_>) -> libnccl::Result<()> {
/// while !comm.wait_for(&stream, Duration::ZERO)? {
///     yield_now().await; // `tokio::task::yield_now`, or a short sleep
/// }
/// # Ok(()) }
/// ```
///
/// # The contract between ranks
/// All ranks of a communicator must call the same collectives in the same order, with the same counts, element types, reduction
/// operators and roots. Each send needs a matching receive. No single process can check this, so joining a communicator means
/// trusting its other ranks.
///
/// On GPUs, a mismatch causes a hang, a CUDA error, or wrong values in device memory, even outside the operation's buffers; host
/// memory is not affected. NCCL 2.29.7 and newer detect some mismatches with `NCCL_CHECK_MODE=DEBUG_GLOBAL`. The CPU backend
/// reports which rank differs.
///
/// Several threads that drive several communicators on *one device* at the same time can deadlock inside NCCL: start all
/// operations of a device from one thread, in the same order on every rank.
///
/// # Errors
/// The `Errors` section of a method lists only errors beyond these:
/// - [`Error::Nccl`] if NCCL fails
/// - [`Error::Unsupported`] if the library is older than the version after "Since NCCL" in the method's description
/// - [`Error::Timeout`] after the [timeout](crate::config::Config::timeout)
/// - [`Error::Aborted`] after an abort
/// - [`Error::InvalidUsage`] while a group is open on this thread
/// - [`Error::InvalidUsage`] after a failed group; [`Nccl::group`] lists the methods that are still allowed
/// - [`Error::InvalidUsage`] while suspended; [`suspend`](Self::suspend) lists the methods that are still allowed
///
/// # Teardown
/// [`destroy`](Self::destroy) waits for unfinished work and returns errors; [`abort`](Self::abort) does not wait for work. On
/// GPUs, dropping a communicator aborts it and its unfinished work, so wait for the stream first.
///
/// # CUDA graphs
/// Operations can be captured into a CUDA graph. Each launch of the graph runs them again, on the same buffers. The buffers
/// and the communicator must outlive the graph and its launches; see [`destroy`](Self::destroy) and [`abort`](Self::abort).
#[doc(alias = "ncclComm_t")]
pub struct Communicator {
    pub(super) shared: Arc<Shared>,
    pub(super) size: usize,
    pub(super) rank: usize,
    device: i32,
    /// The limit of each wait; set for nonblocking communicators only.
    pub(super) timeout: Option<Duration>,
    /// Set once the communicator's work was revoked, or aborted by a shrink: there is nothing left to finalize.
    pub(super) is_stopped: AtomicBool,
    /// Set while the communicator is in this thread's open group.
    in_group: AtomicBool,
    /// The options of the last collective outside a group. NCCL may read them while the collective is in progress.
    pub(super) options: Mutex<Option<RawCollectiveConfig>>,
    /// Makes the communicator `Send` and not `Sync`. All other fields are `Sync`, so the compiler's error names this field, and
    /// does not suggest a lock for another.
    pub(super) sharing: PhantomData<dyn OneThreadAtATime + Send>,
}

/// Explains, in the compiler's error, why a communicator is not `Sync`.
pub(super) trait OneThreadAtATime {}

impl Communicator {
    /// Takes ownership of a communicator that other code has created with `nccl`.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] if the handle is null.
    /// - [`Error::Nccl`] or [`Error::InvalidUsage`] if the communicator has failed, or if its size, rank or device cannot be
    ///   queried. The communicator is then dropped.
    ///
    /// # Safety
    /// `raw` must be a live communicator of `nccl`, not suspended, in no open group, and no longer used by other code. No
    /// [group of other code](crate::nccl::Nccl#groups-of-other-code) may be open on a thread that calls this crate.
    pub unsafe fn from_raw(nccl: &Nccl, raw: sys::ncclComm_t) -> Result<Self> {
        let shared = Shared::new(&nccl.library, raw, Origin::default());
        // SAFETY: the caller guarantees that the handle is live and used by nothing else.
        unsafe { Self::from_shared("from_raw", shared, None, None) }
    }

    /// Runs the closure `with` on a communicator that other code has created with `nccl` and will destroy.
    ///
    /// When `with` returns, or an [`AbortHandle`] is used, this crate stops using the communicator, but does not abort or destroy
    /// it. The communicator has no timeout. Drop its registrations, windows and operators inside `with`; otherwise they last
    /// until other code destroys the communicator, and their memory is leaked.
    ///
    /// ```
    /// use libnccl::{Communicator, ReduceOp, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let owner = nccl.init_all(&[0])?.remove(0);
    /// let mut sum = [1.0_f32];
    /// // SAFETY: a live communicator of `nccl`, which nothing else uses as long as it is borrowed.
    /// unsafe {
    ///     Communicator::borrow_raw(&nccl, owner.as_raw(), |comm| {
    ///         comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, StreamRef::DEFAULT)
    ///     })
    /// }?;
    /// owner.destroy()?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`from_raw`](Self::from_raw), and the error of `with`. After any error, other code still owns the
    /// communicator.
    ///
    /// # Safety
    /// - `raw` must be a live communicator of `nccl`, not suspended and in no open group.
    /// - `raw` must not be destroyed before this function returns.
    /// - Other code must not use `raw` while a method of the borrowed communicator runs, or while a group with its operations is
    ///   open.
    /// - No [group of other code](crate::nccl::Nccl#groups-of-other-code) may be open on a thread that calls this crate.
    pub unsafe fn borrow_raw<R>(
        nccl: &Nccl,
        raw: sys::ncclComm_t,
        with: impl FnOnce(&Self) -> Result<R>,
    ) -> Result<R> {
        let origin = Origin { is_borrowed: true, ..Origin::default() };
        let shared = Shared::new(&nccl.library, raw, origin);
        // SAFETY: the caller guarantees that the handle is live, and used by nothing else at the same time.
        let communicator = unsafe { Self::from_shared("borrow_raw", shared, None, None) }?;
        // Its drop ends the use of the handle, also by remaining objects. `with` cannot forget it.
        with(&communicator)
    }

    /// Creates the communicator for a handle, and waits until it is complete. `parent` is the state of a child's parent, which is
    /// in the call that creates the child. Aborting the parent aborts the child too, because the child has no abort handle yet.
    ///
    /// # Safety
    /// The handle must be null or live, and nothing else may use it at the same time.
    pub(super) unsafe fn from_shared(
        call: &'static str,
        shared: Arc<Shared>,
        timeout: Option<Duration>,
        parent: Option<&State>,
    ) -> Result<Self> {
        if shared.raw.is_null() {
            return Err(Error::argument(call, InvalidArgumentKind::Address, "the handle is null"));
        }
        // Created first, because its drop tears the handle down after an error.
        let mut communicator = Self {
            shared,
            size: 0,
            rank: 0,
            device: 0,
            timeout,
            is_stopped: AtomicBool::new(false),
            in_group: AtomicBool::new(false),
            options: Mutex::default(),
            sharing: PhantomData,
        };
        let Self { shared, size, rank, device, .. } = &mut communicator;
        // Even after success, which `ncclCommGrow` and, with `NCCL_COMM_BLOCKING=0`, `ncclCommInitRank` return immediately.
        let start = Instant::now();
        wait_until(|| shared.progress(call, start, timeout, parent))?;
        let (mut c_size, mut c_rank) = (0, 0);
        // SAFETY: a live communicator and a valid out-parameter, three times.
        unsafe {
            call!(shared.library, ncclCommCount(shared.raw, &raw mut c_size))?;
            call!(shared.library, ncclCommUserRank(shared.raw, &raw mut c_rank))?;
            call!(shared.library, ncclCommCuDevice(shared.raw, device))?;
        }
        (*size, *rank) = match (usize::try_from(c_size), usize::try_from(c_rank)) {
            (Ok(size), Ok(rank)) if rank < size => (size, rank),
            _ => {
                let problem = format!("NCCL returned rank {c_rank} of {c_size}");
                return Err(Error::usage("ncclCommUserRank", problem));
            }
        };
        shared.begin_observation(*size, *rank);
        Ok(communicator)
    }

    /// Returns the C handle, for [functions](crate::nccl::Nccl::as_raw) that have no method in this crate; null after an abort.
    /// The communicator keeps ownership of the handle. The caller must keep the rule for [groups of other
    /// code](crate::nccl::Nccl#groups-of-other-code).
    #[must_use]
    pub fn as_raw(&self) -> sys::ncclComm_t {
        if self.shared.state.is_ended() { std::ptr::null_mut() } else { self.shared.raw }
    }

    /// Converts the communicator into its C handle, which the caller has to destroy; null after an abort.
    /// [`from_raw`](Self::from_raw) takes the handle back. The caller must keep the rule for [groups of other
    /// code](crate::nccl::Nccl#groups-of-other-code).
    #[must_use]
    pub fn into_raw(self) -> sys::ncclComm_t {
        if !self.shared.state.end() {
            return std::ptr::null_mut();
        }
        // Leaked: NCCL keeps a pointer to the name for as long as the communicator exists.
        std::mem::forget(self.shared.origin.name.clone());
        self.shared.notify(CommunicatorEvent::Ended);
        self.shared.raw
    }

    /// Returns the number of ranks.
    #[doc(alias = "ncclCommCount")]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of this rank. The first rank is 0.
    #[doc(alias = "ncclCommUserRank")]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of this rank's CUDA device, which has no meaning on host memory.
    #[doc(alias = "ncclCommCuDevice")]
    pub fn device(&self) -> i32 {
        self.device
    }

    /// Returns the memory space that buffers must be in.
    pub fn memory_space(&self) -> MemorySpace {
        self.shared.memory_space()
    }

    /// Returns a handle that aborts this communicator from another thread.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { shared: Arc::clone(&self.shared) }
    }

    /// Returns the description of this communicator that its observers receive.
    pub fn membership(&self) -> &Membership {
        self.shared.membership(self.size, self.rank)
    }

    /// Adds an observer, which is notified of operations that start from now on, even if this is called inside a group. For an
    /// example, see [`Observer`].
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.shared.observers.add(self.membership(), observer);
    }

    /// Returns whether other code owns the communicator; see [`borrow_raw`](Self::borrow_raw).
    #[doc(hidden)]
    pub fn is_borrowed(&self) -> bool {
        self.shared.origin.is_borrowed
    }

    pub(crate) fn run_ungrouped(
        &self,
        call: &'static str,
        purpose: Purpose,
        enqueue: impl FnOnce() -> Result<ResultCode>,
    ) -> Result<()> {
        let _guard = CallGuard::ungrouped(&self.shared, call, purpose)?;
        if enqueue()? == ResultCode::IN_PROGRESS { self.wait_within(call, None) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn notify_end(&self, result: Result<(), &Error>) {
        if let Some(observed) = self.shared.observers.observed() {
            observed.end(result);
        }
    }

    /// Keeps the options of an ungrouped collective alive while NCCL may read them.
    pub(crate) fn keep_options(&self, options: RawCollectiveConfig) {
        *self.options.lock().unwrap_or_else(PoisonError::into_inner) = Some(options);
    }

    /// Runs a query, which is also allowed after a failure.
    pub(crate) fn query<R>(&self, call: &'static str, query: impl FnOnce() -> Result<R>) -> Result<R> {
        let _guard = CallGuard::new(&self.shared, call, Purpose::Query)?;
        query()
    }

    /// Enters NCCL for the communicator's first operation in a group, until [`leave_group`](Self::leave_group).
    #[inline]
    pub(crate) fn join_group(&self, call: &'static str) -> Result<()> {
        std::mem::forget(CallGuard::new(&self.shared, call, Purpose::Work)?);
        self.in_group.store(true, Relaxed);
        Ok(())
    }

    #[inline]
    pub(crate) fn is_in_group(&self) -> bool {
        self.in_group.load(Relaxed)
    }

    /// Leaves NCCL at the end of a group, which returned `result`.
    #[inline]
    pub(crate) fn leave_group(&self, result: Result<(), &Error>) {
        if result.is_err() {
            self.shared.state.fail();
        }
        self.withdraw_from_group();
        if let Some(observed) = self.shared.observers.observed() {
            observed.end_group(result);
        }
    }

    /// Leaves NCCL before the end of a group in which the communicator has nothing queued.
    #[inline]
    pub(crate) fn withdraw_from_group(&self) {
        let guard = CallGuard(&self.shared);
        self.in_group.store(false, Relaxed);
        drop(guard);
    }

    /// Returns whether a timeout makes the communicator nonblocking. (Handles of other code, and `NCCL_COMM_BLOCKING`, are not
    /// considered.)
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.timeout.is_some()
    }

    /// Returns an error if the communicator has no timeout, so that its calls block inside NCCL.
    #[cold]
    pub(crate) fn require_timeout(&self, call: &'static str) -> Result<()> {
        let problem = "the communicator has no timeout, so that its calls block; expected Config::timeout";
        if self.is_nonblocking() { Ok(()) } else { Err(Error::usage(call, problem)) }
    }

    /// Waits until the method named `call` is complete on a nonblocking communicator. `timeout` replaces the communicator's
    /// timeout.
    pub(crate) fn wait_within(&self, call: &'static str, timeout: Option<Duration>) -> Result<()> {
        let start = Instant::now();
        wait_until(|| self.progress(call, start, timeout))
    }

    pub(crate) fn progress(
        &self,
        call: &'static str,
        start: Instant,
        timeout: Option<Duration>,
    ) -> Poll<Result<()>> {
        self.shared.progress(call, start, timeout.or(self.timeout), None)
    }

    /// Aborts the communicator if work is in progress, so that the work no longer uses the buffers. For a borrowed communicator,
    /// waits for the work instead.
    #[cold]
    pub(crate) fn abort_work_in_progress(&self) {
        if self.is_borrowed() {
            let _ = self.wait_within("group", None);
        } else if !self.shared.state.is_ended()
            && !matches!(self.shared.poll(), Ok(code) if code != ResultCode::IN_PROGRESS)
        {
            let _ = self.shared.abort_unless_ended();
        }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[inline]
    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.shared.library
    }

    /// Returns the handle, for calls inside [`run_ungrouped`](Self::run_ungrouped), a group or [`query`](Self::query).
    #[inline]
    pub(crate) fn raw(&self) -> sys::ncclComm_t {
        self.shared.raw
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("size", &self.size)
            .field("rank", &self.rank)
            .field("device", &self.device)
            .field("state", &self.shared.state)
            .finish_non_exhaustive()
    }
}

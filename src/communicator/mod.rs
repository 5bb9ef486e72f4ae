//! A communicator's life; what it does is in the submodules.
#![allow(unsafe_code)]

mod abort_handle;
mod barrier;
mod collectives;
mod init;
mod memory_usage;
mod one_sided;
mod operations;
mod pending;
mod point_to_point;
mod pre_mul_sum;
mod properties;
mod recovery;
mod registration;
mod split;
mod state;
mod window;

use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use abort_handle::AbortHandle;
pub use memory_usage::MemoryStatistic;
pub use one_sided::{Signal, WaitSignal};
pub use operations::Operations;
pub use pending::PendingCommunicator;
pub(crate) use pending::PendingSlot;
pub use pre_mul_sum::{PreMulSum, PreMulSumOperations};
pub use properties::Properties;
pub use recovery::ShrinkMode;
pub use registration::Registration;
pub use window::{Window, WindowFlags, WindowOffset};

use crate::backend::{Library, call};
use crate::collective_config::RawCollectiveConfig;
use crate::group::forbid_open;
use crate::{Error, MemorySpace, NcclBuffer, Result, ResultCode, sys};
use abort_handle::Shared;
use state::State;

/// One rank's membership in a group of ranks that compute together.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::{ReduceOp, StreamRef};
///
/// let nccl = libnccl_cpu::nccl();
/// let id = nccl.unique_id()?;
/// std::thread::scope(|scope| {
///     for rank in 0..2 {
///         let nccl = &nccl;
///         scope.spawn(move || -> libnccl::Result<()> {
///             let comm = nccl.init_rank(2, rank, &id)?;
///             let mut sum = [0; 2];
///             comm.all_reduce(&[1, comm.rank() as i32], &mut sum, ReduceOp::Sum, StreamRef::DEFAULT)?;
///             assert_eq!(sum, [comm.size() as i32, 1]);
///             comm.destroy()
///         });
///     }
/// });
/// # Ok(())
/// # }
/// ```
///
/// It may move to another thread, but cannot be used by two at the same time, as NCCL is not thread-safe per
/// communicator:
///
/// ```compile_fail,E0277
/// # fn main() -> libnccl::Result<()> {
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let comm = &comms[0];
/// std::thread::scope(|s| s.spawn(|| comm.rank()).join().unwrap());
/// # Ok(())
/// # }
/// ```
///
/// # The contract between ranks
/// What one process cannot check: all ranks of a communicator call the same operations in the same order, with
/// the same counts, element types, operations and roots. On GPUs, a mismatch shows as a hang or as wrong data
/// (NCCL 2.29.7 and newer look for some with `NCCL_CHECK_MODE=DEBUG_GLOBAL`); the CPU implementation reports
/// which rank differs. Several threads that drive several communicators of *one device* at the same time can
/// deadlock inside NCCL: let one thread start all operations of a device, in one order on every rank.
///
/// # Ending
/// [`destroy`](Self::destroy) waits for unfinished work and reports; [`abort`](Self::abort) does not wait.
/// Dropping a communicator aborts it where work may be unfinished (on GPUs), so wait for the stream first.
#[doc(alias = "ncclComm_t")]
pub struct Communicator {
    shared: Arc<Shared>,
    size: usize,
    rank: usize,
    device: i32,
    /// How long a wait may take; set for nonblocking communicators only.
    timeout: Option<Duration>,
    /// Whether its work was revoked, or aborted by a shrink, after which there is nothing to finalize.
    is_stopped: Cell<bool>,
    /// Whether it has operations in the group that is open on this thread. This also makes it not `Sync`.
    in_group: Cell<bool>,
    /// The options of the last collective outside a group, which NCCL may read as long as it is in progress.
    options: RefCell<Option<RawCollectiveConfig>>,
    /// What the barrier reduces, from the first one on.
    barrier: OnceCell<NcclBuffer<u8>>,
}

/// A communicator after [`Communicator::finalize`]: there is nothing left to do but to end it.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let finalized: Vec<_> = comms.into_iter().map(|comm| comm.finalize()).collect::<Result<_, _>>()?;
/// for finalized in finalized {
///     finalized.destroy()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Finalized(Communicator);

impl Communicator {
    /// Takes over a handle that was made by other code, with the implementation it belongs to.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::Communicator;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let raw = nccl.init_all(&[0])?.remove(0).into_raw();
    /// // SAFETY: a live communicator of `nccl`, and `raw` is not used any more.
    /// let comm = unsafe { Communicator::from_raw(&nccl, raw) }?;
    /// assert_eq!(comm.size(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the handle does not answer for its size, rank and device; it is then aborted.
    ///
    /// # Safety
    /// `raw` is a live communicator of `nccl`, and whoever made it does not use it any more.
    pub unsafe fn from_raw(nccl: &crate::Nccl, raw: sys::ncclComm_t) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::adopt(&nccl.library, raw, ResultCode::SUCCESS, None, None) }
    }

    /// Takes over a handle; `code` is what its making answered.
    ///
    /// # Safety
    /// As for [`from_raw`](Self::from_raw).
    unsafe fn adopt(
        library: &Arc<Library>,
        raw: sys::ncclComm_t,
        code: ResultCode,
        timeout: Option<Duration>,
        name: Option<Arc<CStr>>,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::adopt_child(library, raw, code, timeout, name, None) }
    }

    /// [`adopt`](Self::adopt), while the `parent` is in the call that makes it: who aborts that one means this too,
    /// of which nobody can have a handle yet.
    ///
    /// # Safety
    /// As for [`from_raw`](Self::from_raw).
    unsafe fn adopt_child(
        library: &Arc<Library>,
        raw: sys::ncclComm_t,
        code: ResultCode,
        timeout: Option<Duration>,
        name: Option<Arc<CStr>>,
        parent: Option<&State>,
    ) -> Result<Self> {
        if raw.is_null() {
            return Err(Error::argument("from_raw", "the handle is null"));
        }
        let shared = Shared { library: Arc::clone(library), raw, state: State::default(), name };
        let mut communicator = Self {
            shared: Arc::new(shared),
            size: 0,
            rank: 0,
            device: 0,
            timeout,
            is_stopped: Cell::new(false),
            in_group: Cell::new(false),
            options: RefCell::default(),
            barrier: OnceCell::new(),
        };
        if code == ResultCode::IN_PROGRESS {
            communicator.wait_with("ncclCommGetAsyncError", parent)?;
        }
        let (mut size, mut rank, mut device) = (0, 0, 0);
        // SAFETY: a live communicator and a place to write an int to, three times.
        unsafe {
            call!(library, ncclCommCount(raw, &raw mut size))?;
            call!(library, ncclCommUserRank(raw, &raw mut rank))?;
            call!(library, ncclCommCuDevice(raw, &raw mut device))?;
        }
        let (Ok(c_size), Ok(c_rank)) = (usize::try_from(size), usize::try_from(rank)) else {
            return Err(Error::usage("ncclCommUserRank", format!("NCCL says rank {rank} of {size}")));
        };
        if c_rank >= c_size {
            return Err(Error::usage("ncclCommUserRank", format!("NCCL says rank {rank} of {size}")));
        }
        (communicator.size, communicator.rank, communicator.device) = (c_size, c_rank, device);
        Ok(communicator)
    }

    /// The C handle, for functions that this crate has no method for; null after an abort. It stays this
    /// communicator's.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let nccl = libnccl_cpu::nccl();
    /// let comm = nccl.init_all(&[7])?.remove(0);
    /// let cu_device = nccl.as_raw().ncclCommCuDevice.expect("every release has it");
    /// let mut device = 0;
    /// // SAFETY: a live communicator, and a place to write an int to.
    /// unsafe { cu_device(comm.as_raw(), &mut device) };
    /// assert_eq!(device, comm.device());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn as_raw(&self) -> sys::ncclComm_t {
        if self.shared.state.is_ended() { std::ptr::null_mut() } else { self.shared.raw }
    }

    /// The C handle, for the caller to end; null after an abort. [`from_raw`](Self::from_raw) takes it back.
    #[must_use]
    pub fn into_raw(self) -> sys::ncclComm_t {
        if !self.shared.state.end() {
            return std::ptr::null_mut();
        }
        // NCCL keeps the pointer to the name, and there is no one left who knows when it is done with it.
        std::mem::forget(self.shared.name.clone());
        self.shared.raw
    }

    /// How many ranks there are.
    #[doc(alias = "ncclCommCount")]
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Which one this is, from 0.
    #[doc(alias = "ncclCommUserRank")]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The CUDA device it belongs to; on the CPU implementation, a number without a meaning.
    #[doc(alias = "ncclCommCuDevice")]
    #[must_use]
    pub fn device(&self) -> i32 {
        self.device
    }

    /// Where its buffers have to be.
    #[must_use]
    pub fn memory_space(&self) -> MemorySpace {
        self.library().memory_space
    }

    /// What has happened since the last call: [`ResultCode::SUCCESS`] if all is well, an error that the work
    /// ran into after it was enqueued, or [`ResultCode::IN_PROGRESS`].
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::ResultCode;
    ///
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// assert_eq!(comm.async_error()?, ResultCode::SUCCESS);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] if the question itself fails, [`Error::Aborted`] after an abort.
    #[doc(alias = "ncclCommGetAsyncError")]
    pub fn async_error(&self) -> Result<ResultCode> {
        self.ask("async_error", || self.poll())
    }

    /// A handle that aborts this communicator from another thread; see [`AbortHandle`].
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(&self.shared)
    }

    /// Flushes the work that is under way, together with the other ranks; what is left has only to be ended.
    /// Since NCCL 2.14.3.
    ///
    /// [`destroy`](Self::destroy) does this by itself. Finalizing first lets one thread finalize all its
    /// communicators in a row before it destroys any; see [`Finalized`]. There is no communicator any more:
    ///
    /// ```compile_fail,E0382
    /// # fn main() -> libnccl::Result<()> {
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// let finalized = comm.finalize()?;
    /// comm.rank();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Unsupported`], or [`Error::Timeout`]; the communicator is aborted then.
    #[doc(alias = "ncclCommFinalize")]
    pub fn finalize(self) -> Result<Finalized> {
        self.immediate("finalize", || {
            // SAFETY: a live communicator.
            unsafe { call!(self.library(), ncclCommFinalize(self.shared.raw)) }
        })?;
        Ok(Finalized(self))
    }

    /// Ends the communicator, after the work that is under way; the other ranks have to end theirs too.
    ///
    /// One that has failed is aborted instead, as its work may never end.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// for comm in comms {
    ///     comm.destroy()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Afterwards there is nothing left to use:
    ///
    /// ```compile_fail,E0382
    /// # fn main() -> libnccl::Result<()> {
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// comm.destroy()?;
    /// comm.rank();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL reports a failure; the communicator is gone all the same.
    /// [`Error::InvalidUsage`] while a group is open on this thread; it is aborted then, as after
    /// [`Error::Timeout`].
    #[doc(alias = "ncclCommDestroy")]
    pub fn destroy(self) -> Result<()> {
        forbid_open("destroy")?;
        if self.shared.state.is_failed() {
            return self.abort();
        }
        // Destroying a nonblocking communicator is not something that can be waited for; finalizing is.
        let is_to_finalize = self.timeout.is_some() && !self.is_stopped.get();
        let finalized = if is_to_finalize { self.finalize()? } else { Finalized(self) };
        finalized.destroy()
    }

    /// [`destroy`](Self::destroy) for several communicators of one process, all of which are ended even if
    /// one fails.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::Communicator;
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// Communicator::destroy_all(comms)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first one's.
    pub fn destroy_all(communicators: impl IntoIterator<Item = Self>) -> Result<()> {
        let ended: Vec<_> = communicators.into_iter().map(Self::destroy).collect();
        ended.into_iter().collect()
    }

    /// Ends the communicator at once, and the work that is under way with it. The other ranks' work fails.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// comm.abort()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Afterwards there is nothing left to use:
    ///
    /// ```compile_fail,E0382
    /// # fn main() -> libnccl::Result<()> {
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// comm.abort()?;
    /// comm.rank();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL reports a failure; the communicator is gone all the same.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(self) -> Result<()> {
        if self.shared.state.end() {
            // SAFETY: the state has just said so.
            return unsafe { self.shared.abort() };
        }
        Ok(())
    }

    /// Runs something outside a group.
    fn immediate(&self, operation: &'static str, enqueue: impl FnOnce() -> Result<ResultCode>) -> Result<()> {
        self.begin(operation)?;
        self.finish(operation, enqueue())
    }

    // Its two halves, for the operations: these are inlined into their caller, and a closure would not be.

    /// Comes before an operation outside a group.
    #[inline(always)]
    fn begin(&self, operation: &'static str) -> Result<()> {
        forbid_open(operation)?;
        self.shared.state.enter(operation)
    }

    /// Comes after it, with its result.
    #[inline(always)]
    fn finish(&self, operation: &'static str, result: Result<ResultCode>) -> Result<()> {
        let result = match result {
            Ok(ResultCode::IN_PROGRESS) => self.wait(operation),
            result => result.map(drop),
        };
        self.leave();
        result
    }

    /// Asks NCCL something, also after a failure.
    fn ask<R>(&self, call: &'static str, question: impl FnOnce() -> Result<R>) -> Result<R> {
        self.shared.state.enter_to_ask(call)?;
        let answer = question();
        self.leave();
        answer
    }

    /// [`ask`](Self::ask), also while the communicator is in the group that is open on this thread.
    fn ask_or_in_group<R>(&self, call: &'static str, question: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.in_group.get() { question() } else { self.ask(call, question) }
    }

    /// The first operation in a group enters NCCL; the group's end leaves it. `true` if it was the first.
    #[inline]
    pub(crate) fn join_group(&self, operation: &'static str) -> Result<bool> {
        if self.in_group.get() {
            return Ok(false);
        }
        self.shared.state.enter(operation)?;
        self.in_group.set(true);
        Ok(true)
    }

    #[inline]
    pub(crate) fn leave_group(&self, has_failed: bool) {
        if has_failed {
            self.shared.state.fail();
        }
        self.in_group.set(false);
        self.leave();
    }

    #[inline]
    fn leave(&self) {
        if self.shared.state.leave() {
            self.end_for_handle();
        }
    }

    /// An abort handle wanted the end while the owner was inside; the owner is out.
    #[cold]
    fn end_for_handle(&self) {
        // SAFETY: the state has just said so.
        let _ = unsafe { self.shared.abort() };
    }

    /// Waits, inside NCCL, until a nonblocking communicator has done what it was asked.
    pub(crate) fn wait(&self, call: &'static str) -> Result<()> {
        self.wait_with(call, None)
    }

    /// [`wait`](Self::wait) that an abort of the `parent` ends too.
    fn wait_with(&self, call: &'static str, parent: Option<&State>) -> Result<()> {
        const LONGEST: Duration = Duration::from_millis(1);
        let mut pause = Duration::from_micros(1);
        let start = Instant::now();
        loop {
            match self.poll()? {
                ResultCode::SUCCESS => return Ok(()),
                ResultCode::IN_PROGRESS => {}
                code => return Err(self.library().error("ncclCommGetAsyncError", code)),
            }
            if self.shared.state.is_abort_wanted() || parent.is_some_and(State::is_abort_wanted) {
                return Err(Error::Aborted { call });
            }
            let elapsed = start.elapsed();
            if self.timeout.is_some_and(|timeout| elapsed >= timeout) {
                if self.shared.state.end() {
                    // SAFETY: the state has just said so.
                    let _ = unsafe { self.shared.abort() };
                }
                return Err(Error::Timeout { call, elapsed });
            }
            std::thread::sleep(pause);
            pause = LONGEST.min(pause * 2);
        }
    }

    fn poll(&self) -> Result<ResultCode> {
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: a live communicator and a place to write a code to.
        unsafe { call!(self.library(), ncclCommGetAsyncError(self.shared.raw, &raw mut state)) }?;
        Ok(ResultCode::from_raw(state))
    }

    #[inline]
    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.shared.library
    }

    /// For calls that are made inside [`immediate`](Self::immediate), a group or [`ask`](Self::ask).
    #[inline]
    pub(crate) fn raw(&self) -> sys::ncclComm_t {
        self.shared.raw
    }
}

impl Finalized {
    /// Frees what is left. See [`Communicator::destroy`].
    ///
    /// # Errors
    /// As for [`Communicator::destroy`].
    pub fn destroy(self) -> Result<()> {
        forbid_open("destroy")?;
        let Shared { library, raw, state, .. } = &*self.0.shared;
        if !state.end() {
            return Err(Error::Aborted { call: "destroy" });
        }
        // SAFETY: a live communicator, and no one uses it after this.
        let ended = unsafe { call!(library, ncclCommDestroy(*raw)) };
        ended.inspect_err(|_| library.leave_leaked_group()).map(drop)
    }

    /// See [`Communicator::abort`].
    ///
    /// # Errors
    /// As for [`Communicator::abort`].
    pub fn abort(self) -> Result<()> {
        self.0.abort()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.shared.state.end() {
            return;
        }
        let Shared { library, raw, state, .. } = &*self.shared;
        // Destroying waits for the other ranks where work is unfinished, and a drop must not hang. On host
        // memory no work is ever unfinished.
        let end = match library.memory_space {
            MemorySpace::Host if !state.is_failed() => library.functions.ncclCommDestroy,
            _ => library.functions.ncclCommAbort,
        };
        #[cfg(feature = "log")]
        if library.memory_space == MemorySpace::Device && !state.is_failed() && !std::thread::panicking() {
            let Self { rank, size, .. } = self;
            log::warn!(
                "rank {rank} of {size} is dropped, and aborted with the work that has not run; see `destroy`"
            );
        }
        if let Some(end) = end {
            // SAFETY: a live communicator, and no one uses it after this.
            unsafe { end(*raw) };
        }
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

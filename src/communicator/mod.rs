//! A communicator's life; what it does is in the submodules.
#![allow(unsafe_code)]

mod collectives;
mod operations;
mod point_to_point;

use std::cell::Cell;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Library, call};
use crate::group::forbid_open;
use crate::{Error, MemorySpace, Result, ResultCode, UniqueId, sys};

/// One rank's membership in a group of ranks that compute together.
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
    library: Arc<Library>,
    /// Not null, but for a moment at the end.
    raw: sys::ncclComm_t,
    size: usize,
    rank: usize,
    device: i32,
    failed: Cell<bool>,
}

// SAFETY: NCCL lets a communicator be used by one thread after the other; it is not `Sync` (it has a `Cell`).
unsafe impl Send for Communicator {}

impl Communicator {
    pub(crate) fn init_rank(library: &Arc<Library>, size: usize, rank: usize, id: &UniqueId) -> Result<Self> {
        const CALL: &str = "init_rank";
        forbid_open(CALL)?;
        let (Ok(c_size), Ok(c_rank)) = (i32::try_from(size), i32::try_from(rank)) else {
            return Err(Error::argument(CALL, format!("size {size} or rank {rank} is beyond {}", i32::MAX)));
        };
        if rank >= size {
            return Err(Error::argument(CALL, format!("rank {rank} is not below the size {size}")));
        }
        // Null beforehand: some releases look at what is there when they fail.
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is where NCCL writes a handle; the id goes by value.
        let made = unsafe { call!(library, ncclCommInitRank(&raw mut raw, c_size, id.to_raw(), c_rank)) };
        let code = made.inspect_err(|_| library.leave_leaked_group())?;
        // SAFETY: NCCL has just made the handle, and no one else has it.
        unsafe { Self::adopt(Arc::clone(library), raw, code) }
    }

    pub(crate) fn init_all(library: &Arc<Library>, devices: &[i32]) -> Result<Vec<Self>> {
        const CALL: &str = "init_all";
        forbid_open(CALL)?;
        if devices.is_empty() {
            return Err(Error::argument(CALL, "no devices; expected one for each rank"));
        }
        if let Some(device) = devices.iter().find(|device| **device < 0) {
            return Err(Error::argument(CALL, format!("device {device} is negative")));
        }
        let count = i32::try_from(devices.len()).map_err(|_| {
            Error::argument(CALL, format!("{} devices are beyond {}", devices.len(), i32::MAX))
        })?;
        let mut raws = vec![ptr::null_mut(); devices.len()];
        // SAFETY: both arrays have `count` elements.
        let made = unsafe { call!(library, ncclCommInitAll(raws.as_mut_ptr(), count, devices.as_ptr())) };
        let code = made.inspect_err(|_| library.leave_leaked_group())?;
        // SAFETY: NCCL has just made the handles, and no one else has them.
        let adopt = |raw| unsafe { Self::adopt(Arc::clone(library), raw, code) };
        // All of them first: if one fails, the others are ended by their drop.
        let adopted: Vec<_> = raws.into_iter().map(adopt).collect();
        adopted.into_iter().collect()
    }

    /// Takes over a handle that was made by other code, with the implementation it belongs to.
    ///
    /// # Errors
    /// If the handle does not answer for its size, rank and device; it is then aborted.
    ///
    /// # Safety
    /// `raw` is a live communicator of `nccl`, and whoever made it does not use it any more.
    pub unsafe fn from_raw(nccl: &crate::Nccl, raw: sys::ncclComm_t) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::adopt(Arc::clone(&nccl.library), raw, ResultCode::SUCCESS) }
    }

    /// Takes over a handle; `code` is what its making answered.
    ///
    /// # Safety
    /// As for [`from_raw`](Self::from_raw).
    unsafe fn adopt(library: Arc<Library>, raw: sys::ncclComm_t, code: ResultCode) -> Result<Self> {
        if raw.is_null() {
            return Err(Error::argument("from_raw", "the handle is null"));
        }
        let mut communicator = Self { library, raw, size: 0, rank: 0, device: 0, failed: Cell::new(false) };
        // One that was made nonblocking (NCCL_COMM_BLOCKING=0) is not ready yet.
        if code == ResultCode::IN_PROGRESS {
            communicator.wait("ncclCommGetAsyncError")?;
        }
        let library = &communicator.library;
        let (mut size, mut rank, mut device) = (0, 0, 0);
        // SAFETY: a live communicator and a place to write an int to, three times.
        unsafe {
            call!(library, ncclCommCount(raw, &raw mut size))?;
            call!(library, ncclCommUserRank(raw, &raw mut rank))?;
            call!(library, ncclCommCuDevice(raw, &raw mut device))?;
        }
        let positive = |value| usize::try_from(value).unwrap_or_default();
        (communicator.size, communicator.rank, communicator.device) =
            (positive(size), positive(rank), device);
        Ok(communicator)
    }

    /// The C handle, for functions that this crate has no method for. It stays this communicator's.
    #[must_use]
    pub fn as_raw(&self) -> sys::ncclComm_t {
        self.raw
    }

    /// The C handle, for the caller to end.
    #[must_use]
    pub fn into_raw(mut self) -> sys::ncclComm_t {
        std::mem::replace(&mut self.raw, ptr::null_mut())
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
        self.library.memory_space
    }

    /// What has happened since the last call: [`ResultCode::SUCCESS`] if all is well, an error that the work
    /// ran into after it was enqueued, or [`ResultCode::IN_PROGRESS`].
    ///
    /// # Errors
    /// [`Error::Nccl`] if the question itself fails.
    #[doc(alias = "ncclCommGetAsyncError")]
    pub fn async_error(&self) -> Result<ResultCode> {
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: a live communicator and a place to write a code to.
        unsafe { call!(self.library, ncclCommGetAsyncError(self.raw, &raw mut state)) }?;
        Ok(ResultCode::from_raw(state))
    }

    /// Ends the communicator, after the work that is under way; the other ranks have to end theirs too.
    ///
    /// One that has failed is aborted instead, as its work may never end. Afterwards there is nothing left to
    /// use:
    ///
    /// ```compile_fail,E0382
    /// # fn main() -> libnccl::Result<()> {
    /// let mut comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let comm = comms.remove(0);
    /// comm.destroy()?;
    /// comm.rank();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL reports a failure; the communicator is gone all the same.
    /// [`Error::InvalidUsage`] while a group is open on this thread; it is aborted then.
    #[doc(alias = "ncclCommDestroy")]
    pub fn destroy(mut self) -> Result<()> {
        forbid_open("destroy")?;
        if self.failed.get() {
            return self.abort();
        }
        let raw = std::mem::replace(&mut self.raw, ptr::null_mut());
        // SAFETY: a live communicator, and no one uses it after this.
        let ended = unsafe { call!(self.library, ncclCommDestroy(raw)) };
        ended.inspect_err(|_| self.library.leave_leaked_group()).map(drop)
    }

    /// Ends the communicator at once, and the work that is under way with it. The other ranks' work fails.
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL reports a failure; the communicator is gone all the same.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(mut self) -> Result<()> {
        let raw = std::mem::replace(&mut self.raw, ptr::null_mut());
        // SAFETY: a live communicator, and no one uses it after this.
        unsafe { call!(self.library, ncclCommAbort(raw)) }.map(drop)
    }

    /// Runs an operation outside a group.
    fn immediate(&self, operation: &'static str, enqueue: impl FnOnce() -> Result<ResultCode>) -> Result<()> {
        forbid_open(operation)?;
        self.usable(operation)?;
        match enqueue()? {
            ResultCode::IN_PROGRESS => self.wait(operation),
            _ => Ok(()),
        }
    }

    /// Waits until a nonblocking communicator has done what it was asked.
    pub(crate) fn wait(&self, call: &'static str) -> Result<()> {
        const LONGEST: Duration = Duration::from_millis(1);
        let mut pause = Duration::from_micros(1);
        loop {
            match self.async_error()? {
                ResultCode::SUCCESS => return Ok(()),
                ResultCode::IN_PROGRESS => std::thread::sleep(pause),
                code => return Err(self.library.error(call, code)),
            }
            pause = LONGEST.min(pause * 2);
        }
    }

    /// An error if the communicator failed before.
    pub(crate) fn usable(&self, operation: &'static str) -> Result<()> {
        if self.failed.get() {
            return Err(Error::usage(
                operation,
                "the communicator was in a group that failed; it can only be aborted or destroyed",
            ));
        }
        Ok(())
    }

    pub(crate) fn mark_failed(&self) {
        self.failed.set(true);
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.library
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        let functions = &self.library.functions;
        // Destroying waits for the other ranks where work is unfinished, and a drop must not hang. On host
        // memory no work is ever unfinished.
        let end = match self.library.memory_space {
            MemorySpace::Host if !self.failed.get() => functions.ncclCommDestroy,
            _ => functions.ncclCommAbort,
        };
        if let Some(end) = end {
            // SAFETY: a live communicator, and no one uses it after this.
            unsafe { end(self.raw) };
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { raw, size, rank, device, failed, .. } = self;
        f.debug_struct("Communicator")
            .field("raw", raw)
            .field("size", size)
            .field("rank", rank)
            .field("device", device)
            .field("failed", &failed.get())
            .finish_non_exhaustive()
    }
}

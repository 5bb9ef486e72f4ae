//! Queries of a communicator: its asynchronous error, its properties, its memory, and the completion of its work.
#![allow(unsafe_code)] // Calls NCCL.

use std::task::Poll;
use std::time::{Duration, Instant};

use super::communicator::{Communicator, wait_until};
use super::shared::check_no_open_group;
use super::state::Purpose;
use crate::backend::{MemorySpace, call};
use crate::data_type::DataType;
use crate::error::{Error, InvalidArgumentKind, Result, ResultCode};
use crate::observer::CommunicatorEvent;
use crate::stream::{Stream, StreamRef};
use crate::sys;
use crate::sys::device::ncclCommProperties_t;
use crate::version::Version;

/// The properties of a communicator; see [`Communicator::properties`]. Since NCCL 2.29.2.
#[doc(alias = "ncclCommProperties_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Properties {
    /// The number of this rank. The first rank is 0.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The CUDA device number.
    pub cuda_device: i32,
    /// The device number in NVML and `nvidia-smi`.
    pub nvml_device: i32,
    /// Set if kernels can communicate through NCCL's device API.
    pub device_api: bool,
    /// Set if kernels can address several GPUs with one access (multimem).
    pub multimem: bool,
    /// Set if the host can start one-sided operations; `None` before NCCL 2.29.7.
    pub host_rma: Option<bool>,
}

/// A statistic of a communicator's memory; see [`Communicator::memory`]. Since NCCL 2.29.7.
#[doc(alias = "ncclCommMemStat_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum MemoryStatistic {
    /// The bytes of device memory that [`suspend`](Communicator::suspend) can free.
    #[doc(alias = "ncclStatGpuMemSuspend")]
    Suspendable = sys::ncclCommMemStat_t::ncclStatGpuMemSuspend.0,
    /// 1 while the communicator is [suspended](Communicator::suspend), otherwise 0.
    #[doc(alias = "ncclStatGpuMemSuspended")]
    Suspended = sys::ncclCommMemStat_t::ncclStatGpuMemSuspended.0,
    /// The bytes of device memory that remain allocated while the communicator is suspended.
    #[doc(alias = "ncclStatGpuMemPersist")]
    Persistent = sys::ncclCommMemStat_t::ncclStatGpuMemPersist.0,
    /// The bytes of device memory that the communicator uses in total.
    #[doc(alias = "ncclStatGpuMemTotal")]
    Total = sys::ncclCommMemStat_t::ncclStatGpuMemTotal.0,
}

impl Communicator {
    /// Returns the asynchronous state: [`ResultCode::SUCCESS`], the error of work that failed after it was enqueued, or
    /// [`ResultCode::IN_PROGRESS`] during a call of a nonblocking communicator. An error is permanent: abort or
    /// [shrink](Self::shrink) the communicator.
    #[doc(alias = "ncclCommGetAsyncError")]
    pub fn async_error(&self) -> Result<ResultCode> {
        self.query("async_error", || self.shared.poll())
    }

    /// Returns the properties of this communicator. Since NCCL 2.29.2.
    #[doc(alias = "ncclCommQueryProperties")]
    pub fn properties(&self) -> Result<Properties> {
        let library = self.library();
        // The device API's header declares this function, so it is not in the table of nccl.h.
        let functions = &library.device_functions;
        let query = library.function("ncclCommQueryProperties", functions.ncclCommQueryProperties)?;
        let mut raw = ncclCommProperties_t::initializer(library.version.code());
        self.query("properties", || {
            // SAFETY: a live communicator, and a struct that is initialized for this version.
            library.check("ncclCommQueryProperties", unsafe { query(self.raw(), &raw mut raw) })
        })?;
        let to_usize = |value| usize::try_from(value).unwrap_or_default();
        Ok(Properties {
            rank: to_usize(raw.rank),
            size: to_usize(raw.nRanks),
            cuda_device: raw.cudaDev,
            nvml_device: raw.nvmlDev,
            device_api: raw.deviceApiSupport,
            multimem: raw.multimemSupport,
            // Earlier versions have a different layout from here on.
            host_rma: (library.version >= Version::new(2, 29, 7)).then_some(raw.hostRmaSupport),
        })
    }

    /// Returns a statistic of the communicator's memory. Since NCCL 2.29.7.
    #[doc(alias = "ncclCommMemStats")]
    pub fn memory(&self, statistic: MemoryStatistic) -> Result<u64> {
        let raw_statistic = sys::ncclCommMemStat_t(statistic as _);
        let mut bytes = 0;
        self.query("memory", || {
            // SAFETY: a live communicator and a valid out-parameter.
            unsafe { call!(self.library(), ncclCommMemStats(self.raw(), raw_statistic, &raw mut bytes)) }
        })?;
        Ok(bytes)
    }

    /// Frees the device memory that an idle communicator does not need. All ranks must call this while no work is in progress.
    /// Until [`resume`](Self::resume), operations return [`Error::InvalidUsage`]; queries and teardown are allowed. Since NCCL
    /// 2.29.7.
    #[doc(alias = "ncclCommSuspend")]
    #[doc(alias = "NCCL_SUSPEND_MEM")]
    pub fn suspend(&self) -> Result<()> {
        let flags = sys::NCCL_SUSPEND_MEM.cast_signed();
        let suspended = self.run_ungrouped("suspend", Purpose::Work, || {
            // SAFETY: a live communicator.
            unsafe { call!(self.library(), ncclCommSuspend(self.raw(), flags)) }?;
            // A nonblocking communicator may be in progress even after success.
            Ok(ResultCode::IN_PROGRESS)
        });
        // NCCL itself would start operations without the memory. After a failure, some of it may be freed.
        let is_refusal = |code| [ResultCode::INVALID_USAGE, ResultCode::INVALID_ARGUMENT].contains(&code);
        if !suspended.as_ref().is_err_and(|error| error.code().is_none_or(is_refusal)) {
            self.shared.state.set_suspended(true);
        }
        suspended
    }

    /// Reallocates the memory that [`suspend`](Self::suspend) freed. All ranks must call this. Since NCCL 2.29.7.
    #[doc(alias = "ncclCommResume")]
    pub fn resume(&self) -> Result<()> {
        self.run_ungrouped("resume", Purpose::WhileSuspended, || {
            // SAFETY: a live communicator.
            unsafe { call!(self.library(), ncclCommResume(self.raw())) }?;
            // As in `suspend`.
            Ok(ResultCode::IN_PROGRESS)
        })?;
        self.shared.state.set_suspended(false);
        Ok(())
    }

    /// Waits until all work on a stream is complete. If an operation of the communicator fails meanwhile, for example because
    /// another rank has exited, the wait returns the error. After the `timeout`, this method aborts the communicator and its work
    /// on the stream.
    ///
    /// On host memory, operations are complete when their calls return, so this method only reports an asynchronous error.
    ///
    /// ```
    /// use std::time::Duration;
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let mut buffer = [1.0, 2.0];
    /// comms[0].all_reduce_in_place(&mut buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// comms[0].synchronize(&StreamRef::DEFAULT, Duration::from_secs(30))?;
    /// assert_eq!(buffer, [1.0, 2.0]);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] after the `timeout`; otherwise the errors of [`wait_for`](Self::wait_for).
    #[doc(alias = "cudaStreamSynchronize")]
    pub fn synchronize(&self, stream: &(impl Stream + ?Sized), timeout: Duration) -> Result<()> {
        const CALL: &str = "synchronize";
        let start = Instant::now();
        if !self.is_done(CALL, stream, timeout)? {
            return Err(self.shared.give_up(CALL, start.elapsed()));
        }
        Ok(())
    }

    /// Waits until all work on a stream is complete, but at most for the `timeout`. Returns whether the work is complete. In
    /// contrast to [`synchronize`](Self::synchronize), the communicator is not aborted after the `timeout`. To end the work,
    /// [revoke](Self::revoke) the communicator, or [shrink](Self::shrink) it with
    /// [`ShrinkMode::Abort`](crate::communicator::ShrinkMode::Abort). For an example, see [async code](Self#async-code).
    ///
    /// # Errors
    /// - [`Error::Nccl`] if the communicator has an [asynchronous error](Self::async_error). The communicator must then be
    ///   aborted or shrunk.
    /// - [`Error::Aborted`] after an abort by an [`AbortHandle`](crate::communicator::AbortHandle).
    /// - [`Error::InvalidUsage`] while a group is open on this thread, or if the stream cannot be queried (see
    ///   [`Stream::is_complete`]). For example, [`StreamRef::DEFAULT`] cannot be queried while another device is current.
    #[doc(alias = "ncclCommGetAsyncError")]
    pub fn wait_for(&self, stream: &(impl Stream + ?Sized), timeout: Duration) -> Result<bool> {
        self.is_done("wait_for", stream, timeout)
    }

    fn is_done(&self, call: &'static str, stream: &(impl Stream + ?Sized), limit: Duration) -> Result<bool> {
        check_no_open_group(self.library(), call)?;
        let start = Instant::now();
        wait_until(|| {
            // The stream first, as a failed operation may complete it. The communicator's error is the cause of the stream's.
            let completed = match self.memory_space() {
                MemorySpace::Host => Ok(true),
                MemorySpace::Device if stream.device().is_some() => stream.is_complete(),
                MemorySpace::Device => {
                    StreamRef::from(stream).check_current(self.device()).and_then(|()| stream.is_complete())
                }
            };
            let state = self.query(call, || self.shared.poll())?;
            if ![ResultCode::SUCCESS, ResultCode::IN_PROGRESS].contains(&state) {
                return Poll::Ready(Err(self.library().error(call, state)));
            }
            let is_complete = completed
                .map_err(|error| Error::usage(call, format!("the stream cannot be queried: {error}")))?;
            if is_complete && state == ResultCode::SUCCESS {
                self.shared.notify(CommunicatorEvent::StreamCompleted(stream.as_raw().addr()));
                return Poll::Ready(Ok(true));
            }
            if start.elapsed() >= limit { Poll::Ready(Ok(false)) } else { Poll::Pending }
        })
    }

    /// Returns an error if the library lacks the element type, or if the buffer's memory space differs from the communicator's.
    pub(crate) fn check_buffer(
        &self,
        call: &'static str,
        data_type: DataType,
        space: Option<MemorySpace>,
        name: &'static str,
    ) -> Result<()> {
        data_type.require(self.library())?;
        match space {
            Some(space) if space != self.memory_space() => Err(self.wrong_memory(call, name, space)),
            _ => Ok(()),
        }
    }

    #[cold]
    pub(crate) fn wrong_memory(&self, call: &'static str, buffer: &str, found: MemorySpace) -> Error {
        let expected = self.memory_space();
        let problem = format!("{buffer} is in {found} memory; the communicator works on {expected} memory");
        Error::argument(call, InvalidArgumentKind::MemorySpace, problem)
    }

    /// Returns an error if a stream or a buffer belongs to another CUDA device than the communicator.
    pub(crate) fn check_device(
        &self,
        call: &'static str,
        found: Option<i32>,
        name: &'static str,
    ) -> Result<()> {
        let expected = self.device();
        match found {
            // Device numbers have no meaning for host memory.
            Some(found) if found != expected && self.memory_space() == MemorySpace::Device => {
                let problem =
                    format!("{name} is on device {found}; the communicator is on device {expected}");
                Err(Error::argument(call, InvalidArgumentKind::Device, problem))
            }
            _ => Ok(()),
        }
    }
}

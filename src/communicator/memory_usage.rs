#![allow(unsafe_code)]

use super::communicator::Communicator;
use super::state::Purpose;
use crate::backend::call;
use crate::error::{Result, ResultCode};
use crate::sys;

/// A statistic of a communicator's memory; see [`Communicator::memory`]. Since NCCL 2.29.7.
///
/// ```
/// use libnccl::communicator::MemoryStatistic;
///
/// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let [total, persistent] = [MemoryStatistic::Total, MemoryStatistic::Persistent].map(|s| comm.memory(s));
/// println!("{} bytes, of which {} remain when suspended", total?, persistent?);
/// # Ok::<(), libnccl::Error>(())
/// ```
#[doc(alias = "ncclCommMemStat_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum MemoryStatistic {
    /// The bytes of device memory that [`suspend`](Communicator::suspend) can free.
    #[doc(alias = "ncclStatGpuMemSuspend")]
    Suspendable = sys::ncclCommMemStat_t::ncclStatGpuMemSuspend.0,
    /// 1 while that memory is freed, otherwise 0.
    #[doc(alias = "ncclStatGpuMemSuspended")]
    Suspended = sys::ncclCommMemStat_t::ncclStatGpuMemSuspended.0,
    /// The bytes of device memory that remain while suspended.
    #[doc(alias = "ncclStatGpuMemPersist")]
    Persistent = sys::ncclCommMemStat_t::ncclStatGpuMemPersist.0,
    /// The bytes of all device memory of the communicator.
    #[doc(alias = "ncclStatGpuMemTotal")]
    Total = sys::ncclCommMemStat_t::ncclStatGpuMemTotal.0,
}

impl Communicator {
    /// Returns a statistic of the communicator's memory; for an example, see [`MemoryStatistic`]. Since NCCL 2.29.7.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::error::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
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

    /// Frees the device memory that the communicator does not need while it is idle; all ranks call it, with no work in
    /// progress. Until [`resume`](Self::resume), it can only be queried and ended. Since NCCL 2.29.7.
    ///
    /// ```
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// comm.suspend()?;
    /// // ... Code that needs the memory.
    /// comm.resume()?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::error::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommSuspend")]
    #[doc(alias = "NCCL_SUSPEND_MEM")]
    pub fn suspend(&self) -> Result<()> {
        let flags = sys::NCCL_SUSPEND_MEM.cast_signed();
        let suspended = self.run_ungrouped("suspend", Purpose::Work, || {
            // SAFETY: a live communicator.
            unsafe { call!(self.library(), ncclCommSuspend(self.raw(), flags)) }.map(wait_anyway)
        });
        // NCCL itself would start operations without the memory. After a failure, some of it may be gone.
        let is_refused = suspended.as_ref().is_err_and(|error| {
            error
                .code()
                .is_none_or(|code| [ResultCode::INVALID_USAGE, ResultCode::INVALID_ARGUMENT].contains(&code))
        });
        if !is_refused {
            self.shared.state.set_suspended(true);
        }
        suspended
    }

    /// Allocates the memory again that [`suspend`](Self::suspend) freed; all ranks call it. For an example, see
    /// `suspend`. Since NCCL 2.29.7.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::error::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommResume")]
    pub fn resume(&self) -> Result<()> {
        self.run_ungrouped("resume", Purpose::WhileSuspended, || {
            // SAFETY: a live communicator.
            unsafe { call!(self.library(), ncclCommResume(self.raw())) }.map(wait_anyway)
        })?;
        self.shared.state.set_suspended(false);
        Ok(())
    }
}

/// Returns what makes the caller wait, as a nonblocking communicator may be in progress even if the call returns success.
fn wait_anyway(_: ResultCode) -> ResultCode {
    ResultCode::IN_PROGRESS
}

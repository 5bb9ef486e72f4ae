#![allow(unsafe_code)]

use super::Communicator;
use crate::backend::call;
use crate::{Result, sys};

/// What [`Communicator::memory`] tells. Since NCCL 2.29.7.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::MemoryStatistic;
///
/// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let [total, stays] = [MemoryStatistic::Total, MemoryStatistic::Persistent].map(|s| comm.memory(s));
/// println!("{} bytes, of which {} stay when it is suspended", total?, stays?);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ncclCommMemStat_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryStatistic {
    /// Bytes of device memory that [`suspend`](Communicator::suspend) would free.
    #[doc(alias = "ncclStatGpuMemSuspend")]
    Suspendable,
    /// Whether that memory is freed now: 1 or 0.
    #[doc(alias = "ncclStatGpuMemSuspended")]
    Suspended,
    /// Bytes of device memory that stay, suspended or not.
    #[doc(alias = "ncclStatGpuMemPersist")]
    Persistent,
    /// Bytes of all device memory that the communicator takes.
    #[doc(alias = "ncclStatGpuMemTotal")]
    Total,
}

impl Communicator {
    /// What the communicator's memory is, by one of NCCL's statistics. Since NCCL 2.29.7.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::MemoryStatistic;
    ///
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// let is_suspended = comm.memory(MemoryStatistic::Suspended)? == 1;
    /// assert!(!is_suspended);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommMemStats")]
    pub fn memory(&self, statistic: MemoryStatistic) -> Result<u64> {
        let raw_statistic = match statistic {
            MemoryStatistic::Suspendable => sys::ncclCommMemStat_t::ncclStatGpuMemSuspend,
            MemoryStatistic::Suspended => sys::ncclCommMemStat_t::ncclStatGpuMemSuspended,
            MemoryStatistic::Persistent => sys::ncclCommMemStat_t::ncclStatGpuMemPersist,
            MemoryStatistic::Total => sys::ncclCommMemStat_t::ncclStatGpuMemTotal,
        };
        let mut bytes = 0;
        self.ask("memory", || {
            // SAFETY: a live communicator, and a place to write a number to.
            unsafe { call!(self.library(), ncclCommMemStats(self.raw(), raw_statistic, &raw mut bytes)) }
        })?;
        Ok(bytes)
    }

    /// Frees device memory that the communicator does not need while it does not work; all ranks call it, with
    /// no work under way. Since NCCL 2.29.7.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// comm.suspend()?;
    /// // ... What needs the memory in between.
    /// comm.resume()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommSuspend")]
    #[doc(alias = "NCCL_SUSPEND_MEM")]
    pub fn suspend(&self) -> Result<()> {
        let flags = sys::NCCL_SUSPEND_MEM.cast_signed();
        // SAFETY: a live communicator.
        self.immediate("suspend", || unsafe { call!(self.library(), ncclCommSuspend(self.raw(), flags)) })
    }

    /// Takes the memory again that [`suspend`](Self::suspend) freed, where there is an example; all ranks call it.
    /// Since NCCL 2.29.7.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommResume")]
    pub fn resume(&self) -> Result<()> {
        // SAFETY: a live communicator.
        self.immediate("resume", || unsafe { call!(self.library(), ncclCommResume(self.raw())) })
    }
}

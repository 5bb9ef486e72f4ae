#![allow(unsafe_code)]

use super::Communicator;
use crate::backend::call;
use crate::{Result, sys};

/// What [`Communicator::memory`] counts, in bytes.
#[doc(alias = "ncclCommMemStat_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryStatistic {
    /// Device memory that [`suspend`](Communicator::suspend) would free.
    #[doc(alias = "ncclStatGpuMemSuspend")]
    Suspendable,
    /// Device memory that is freed now, by a suspension.
    #[doc(alias = "ncclStatGpuMemSuspended")]
    Suspended,
    /// Device memory that stays, suspended or not.
    #[doc(alias = "ncclStatGpuMemPersist")]
    Persistent,
    /// All of the device memory that the communicator takes.
    #[doc(alias = "ncclStatGpuMemTotal")]
    Total,
}

impl Communicator {
    /// How much memory the communicator takes, in bytes. Since NCCL 2.29.7.
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
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommSuspend")]
    pub fn suspend(&self) -> Result<()> {
        let flags = sys::NCCL_SUSPEND_MEM.cast_signed();
        // SAFETY: a live communicator.
        self.immediate("suspend", || unsafe { call!(self.library(), ncclCommSuspend(self.raw(), flags)) })
    }

    /// Takes the memory again that [`suspend`](Self::suspend) freed; all ranks call it. Since NCCL 2.29.7.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommResume")]
    pub fn resume(&self) -> Result<()> {
        // SAFETY: a live communicator.
        self.immediate("resume", || unsafe { call!(self.library(), ncclCommResume(self.raw())) })
    }
}

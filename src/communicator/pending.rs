#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::CStr;
use std::fmt;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::Communicator;
use super::init::Arguments;
use crate::backend::{Library, call};
use crate::{Config, Error, Result, ResultCode, UniqueId, sys};

/// A communicator that a group makes at its end; see [`Group::init_rank`](crate::Group::init_rank).
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::Config;
///
/// let nccl = libnccl_cpu::nccl();
/// let id = nccl.unique_id()?;
/// let pending = nccl.group(|g| g.init_rank(1, 0, &id, &Config::default()))?;
/// let comm = pending.finish()?;
/// assert_eq!(comm.size(), 1);
/// # Ok(())
/// # }
/// ```
pub struct PendingCommunicator {
    slot: Rc<PendingSlot>,
    timeout: Option<Duration>,
}

/// Where NCCL writes the handle, and what it keeps pointers to; alive until the group has ended, for the group
/// has it too. Whoever has it last ends the communicator, unless it was taken out.
pub(crate) struct PendingSlot {
    library: Arc<Library>,
    raw: Cell<sys::ncclComm_t>,
    state: Cell<Pending>,
    name: Option<Arc<CStr>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    /// The group is open.
    Open,
    /// It has ended.
    Made,
    /// It has failed, and NCCL has taken its communicators back.
    Failed,
}

impl PendingSlot {
    pub(crate) fn settle(&self, has_failed: bool) {
        self.state.set(if has_failed { Pending::Failed } else { Pending::Made });
    }
}

impl PendingCommunicator {
    pub(crate) fn init_rank(
        library: &Arc<Library>,
        size: usize,
        rank: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<Self> {
        const CALL: &str = "init_rank";
        let Arguments { size, rank } = Arguments::new(CALL, size, rank)?;
        let mut raw_config = config.to_raw(CALL, library.version, &library.backend.to_string())?;
        let slot = Rc::new(PendingSlot {
            library: Arc::clone(library),
            raw: Cell::new(ptr::null_mut()),
            state: Cell::new(Pending::Open),
            name: raw_config.name(),
        });
        let place = slot.raw.as_ptr();
        // SAFETY: `place` lives until the group has ended, as the group keeps the slot; a failed call does not
        // keep it. The configuration is read during the call, but for the name.
        unsafe {
            if config.is_default() {
                call!(library, ncclCommInitRank(place, size, id.to_raw(), rank))?;
            } else {
                call!(
                    library,
                    ncclCommInitRankConfig(place, size, id.to_raw(), rank, raw_config.as_mut_ptr())
                )?;
            }
        }
        Ok(Self { slot, timeout: config.timeout_duration() })
    }

    pub(crate) fn slot(&self) -> Rc<PendingSlot> {
        Rc::clone(&self.slot)
    }

    /// The communicator, after the group.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::Config;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let id = nccl.unique_id()?;
    /// nccl.group(|g| {
    ///     let pending = g.init_rank(1, 0, &id, &Config::default())?;
    ///     assert!(pending.finish().is_err(), "the group has not ended");
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] before the end of the group, or if it failed; else as for
    /// [`Nccl::init_rank_with`](crate::Nccl::init_rank_with).
    pub fn finish(self) -> Result<Communicator> {
        match self.slot.state.get() {
            Pending::Open => {
                Err(Error::usage("finish", "the group that makes the communicator has not ended"))
            }
            Pending::Failed => {
                Err(Error::usage("finish", "the group that was to make the communicator failed"))
            }
            Pending::Made => {
                let PendingSlot { library, raw, name, .. } = &*self.slot;
                let raw = raw.replace(ptr::null_mut());
                // One that is nonblocking, by its options or by `NCCL_COMM_BLOCKING`, may still be at it.
                let code = ResultCode::IN_PROGRESS;
                // SAFETY: the group has made the handle, and it is taken out of the slot.
                unsafe { Communicator::adopt(library, raw, code, self.timeout, name.clone()) }
            }
        }
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        let raw = self.raw.get();
        if self.state.get() == Pending::Made && !raw.is_null() {
            // SAFETY: the group has made the handle, and no one has taken it.
            let _ = unsafe { call!(self.library, ncclCommAbort(raw)) };
        }
    }
}

impl fmt::Debug for PendingCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCommunicator").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl fmt::Debug for PendingSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingSlot").field("state", &self.state.get()).finish_non_exhaustive()
    }
}

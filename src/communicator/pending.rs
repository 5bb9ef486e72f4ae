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
pub struct PendingCommunicator {
    library: Arc<Library>,
    slot: Rc<PendingSlot>,
    timeout: Option<Duration>,
    name: Option<Arc<CStr>>,
}

/// Where NCCL writes the handle; alive until the group has ended, for the group has it too.
#[derive(Debug)]
pub(crate) struct PendingSlot {
    raw: Cell<sys::ncclComm_t>,
    state: Cell<Pending>,
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
        let slot = Rc::new(PendingSlot { raw: Cell::new(ptr::null_mut()), state: Cell::new(Pending::Open) });
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
        let (timeout, name) = (config.timeout_duration(), raw_config.name());
        Ok(Self { library: Arc::clone(library), slot, timeout, name })
    }

    pub(crate) fn slot(&self) -> Rc<PendingSlot> {
        Rc::clone(&self.slot)
    }

    /// The communicator, after the group.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] before the end of the group, or if it failed; else as for
    /// [`Nccl::init_rank_with`](crate::Nccl::init_rank_with).
    pub fn finish(mut self) -> Result<Communicator> {
        match self.slot.state.get() {
            Pending::Open => {
                Err(Error::usage("finish", "the group that makes the communicator has not ended"))
            }
            Pending::Failed => {
                Err(Error::usage("finish", "the group that was to make the communicator failed"))
            }
            Pending::Made => {
                let raw = self.slot.raw.replace(ptr::null_mut());
                // One that is nonblocking may still be at it.
                let code = if self.timeout.is_some() { ResultCode::IN_PROGRESS } else { ResultCode::SUCCESS };
                let (timeout, name) = (self.timeout, self.name.take());
                // SAFETY: the group has made the handle, and it is taken out of the slot.
                unsafe { Communicator::adopt(&self.library, raw, code, timeout, name) }
            }
        }
    }
}

impl Drop for PendingCommunicator {
    fn drop(&mut self) {
        let raw = self.slot.raw.get();
        if self.slot.state.get() == Pending::Made && !raw.is_null() {
            // SAFETY: the group has made the handle, and no one has taken it.
            let _ = unsafe { call!(self.library, ncclCommAbort(raw)) };
        }
    }
}

impl fmt::Debug for PendingCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCommunicator").field("state", &self.slot.state.get()).finish_non_exhaustive()
    }
}

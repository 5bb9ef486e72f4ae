#![allow(unsafe_code)] // Calls ncclCommAbort.

use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

use super::state::State;
use crate::backend::{Library, call};
use crate::{Result, sys};

/// What a communicator and its abort handles share.
pub(crate) struct Shared {
    pub(crate) library: Arc<Library>,
    /// Live as long as [`State`] does not say that it is ended.
    pub(crate) raw: sys::ncclComm_t,
    pub(crate) state: State,
    /// NCCL keeps the pointer that it was given as `commName`.
    pub(crate) name: Option<Arc<CStr>>,
}

// SAFETY: the pointer is only used by whom `state` lets into NCCL, one thread at a time.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Ends the communicator without waiting.
    ///
    /// # Safety
    /// [`State`] has told the caller to.
    pub(crate) unsafe fn abort(&self) -> Result<()> {
        // SAFETY: live, and no one enters NCCL with it any more, by the caller's promise.
        unsafe { call!(self.library, ncclCommAbort(self.raw)) }.map(drop)
    }
}

/// Aborts a communicator from another thread: for a watchdog, or a signal to stop.
///
/// NCCL allows no second thread in a communicator, so a handle does not force its way in. If the owner is not in
/// a call, the communicator is aborted at once. If it is waiting in a call of a communicator with a
/// [timeout](crate::Config::timeout), which polls, the owner aborts it itself within a millisecond and gets
/// [`Error::Aborted`](crate::Error::Aborted). A call that blocks inside NCCL is not interrupted; the abort
/// happens when it returns.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let handle = comms[0].abort_handle();
/// std::thread::spawn(move || handle.abort()).join().unwrap()?;
/// assert!(matches!(comms[0].async_error(), Err(libnccl::Error::Aborted { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AbortHandle {
    shared: Arc<Shared>,
}

impl AbortHandle {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    /// Aborts the communicator; nothing happens if it has ended already.
    ///
    /// # Errors
    /// [`Error::Nccl`](crate::Error::Nccl) if NCCL reports a failure; the communicator is gone all the same.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(&self) -> Result<()> {
        if self.shared.state.abort() {
            // SAFETY: the state has just said so.
            return unsafe { self.shared.abort() };
        }
        Ok(())
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("state", &self.shared.state).finish_non_exhaustive()
    }
}

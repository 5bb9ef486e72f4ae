#![allow(unsafe_code)] // Aborts on behalf of the communicator.

use std::fmt;
use std::sync::Arc;

use super::shared::Shared;
use crate::Result;

/// A handle that aborts a communicator from another thread, for instance from a watchdog or a signal handler thread.
///
/// NCCL allows only one thread at a time in a communicator, so the handle never enters NCCL beside the owner. If the
/// owner is not in a call, the handle aborts the communicator at once. If the owner waits in a call of a communicator
/// with a [timeout](crate::Config::timeout), which polls, the owner aborts it within a millisecond and gets
/// [`Error::Aborted`](crate::Error::Aborted). A call that blocks inside NCCL is not interrupted; the abort follows
/// when it returns.
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
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    /// Aborts the communicator; does nothing if it has ended already.
    ///
    /// # Errors
    /// [`Error::Nccl`](crate::Error::Nccl) if NCCL reports a failure; the communicator is gone nevertheless.
    /// [`Error::Timeout`](crate::Error::Timeout) after 5 s, as for [`Communicator::abort`](crate::Communicator::abort).
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(&self) -> Result<()> {
        if self.shared.state.abort() {
            // SAFETY: the state has told this thread to end it.
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

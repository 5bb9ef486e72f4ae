#![allow(unsafe_code)] // Aborts on behalf of the communicator.

use std::fmt;
use std::sync::Arc;

use super::inside::Inside;
use super::shared::Shared;
use crate::error::{Error, Result, ResultCode};
use crate::observer::{CommunicatorEvent, Observer};

/// A handle that aborts a communicator from another thread, for instance from a watchdog or a signal handler thread, and asks how
/// it is.
///
/// NCCL allows only one thread at a time in a communicator, so the handle never enters NCCL beside the owner. If the
/// owner is not in a call, the handle aborts the communicator at once. If the owner waits in a call of a communicator
/// with a [timeout](crate::config::Config::timeout), which polls, the owner aborts it within a millisecond and gets
/// [`Error::Aborted`](crate::error::Error::Aborted). A call that blocks inside NCCL is not interrupted; the abort follows
/// when it returns.
///
/// ```
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let handle = comms[0].abort_handle();
/// std::thread::spawn(move || handle.abort()).join().unwrap()?;
/// assert!(matches!(comms[0].async_error(), Err(libnccl::Error::Aborted { .. })));
/// # Ok::<(), libnccl::Error>(())
/// ```
#[derive(Clone)]
pub struct AbortHandle {
    shared: Arc<Shared>,
}

/// The health of a communicator; see [`AbortHandle::health`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// No asynchronous error is known.
    Good,
    /// The communicator has this asynchronous error.
    Failed(Error),
    /// The owner is in a call, or in a group, and nobody else can ask.
    Busy,
    /// The communicator has ended.
    Ended,
}

impl AbortHandle {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    /// Aborts the communicator; does nothing if it has ended already.
    ///
    /// # Errors
    /// [`Error::Nccl`](crate::Error::Nccl) if NCCL reports a failure; the communicator is gone nevertheless.
    /// [`Error::Timeout`](crate::error::Error::Timeout) after 5 s, as for [`Communicator::abort`](crate::communicator::Communicator::abort).
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(&self) -> Result<()> {
        if self.shared.state.abort() {
            // SAFETY: the state has told this thread to end it.
            return unsafe { self.shared.abort() };
        }
        Ok(())
    }

    /// Aborts the communicators of all handles, those of one library in one group of NCCL, so that none waits for another. A
    /// communicator whose owner is in a call is aborted by the owner.
    ///
    /// ```
    /// use libnccl::communicator::{AbortHandle, Health};
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// AbortHandle::abort_all(comms.iter().map(|comm| comm.abort_handle()))?;
    /// assert!(comms.iter().all(|comm| comm.abort_handle().health() == Health::Ended));
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`abort`](Self::abort).
    pub fn abort_all(handles: impl IntoIterator<Item = Self>) -> Result<()> {
        // All of them before the first is aborted: the iterator may panic.
        let mut to_end: Vec<_> = handles.into_iter().map(|handle| handle.shared).collect();
        to_end.retain(|shared| shared.state.abort());
        let mut result = Ok(());
        while let Some(first) = to_end.first() {
            let library = Arc::clone(&first.library);
            let (same, others) = to_end.into_iter().partition(|shared| shared.library.is_same(&library));
            // SAFETY: the state of each has told this thread to end it.
            let ended = unsafe { Shared::abort_all("abort_all", same) };
            result = result.and(ended);
            to_end = others;
        }
        result
    }

    /// Asks for the communicator's asynchronous error, unless its owner is in NCCL. The owner waits meanwhile; it is a short
    /// query. For an example, see [`abort_all`](Self::abort_all).
    #[doc(alias = "ncclCommGetAsyncError")]
    #[must_use]
    pub fn health(&self) -> Health {
        const CALL: &str = "health";
        let Self { shared } = self;
        if let Ok(_inside) = Inside::for_object(shared, CALL) {
            return match shared.poll() {
                Ok(ResultCode::SUCCESS | ResultCode::IN_PROGRESS) => Health::Good,
                Ok(code) => Health::Failed(shared.library.error(CALL, code)),
                Err(error) => Health::Failed(error),
            };
        }
        if shared.state.is_ended() { Health::Ended } else { Health::Busy }
    }

    /// Tells the observers of the communicator that it is in the same call for too long.
    pub fn report_stall(&self) {
        self.shared.tell(CommunicatorEvent::Stalled);
    }

    /// Returns the first observer of the communicator that is of this type.
    #[must_use]
    pub fn observer<T: Observer>(&self) -> Option<&T> {
        self.shared.observers.find()
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("state", &self.shared.state).finish_non_exhaustive()
    }
}

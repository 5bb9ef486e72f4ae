//! The teardown of communicators: revoke, finalize, destroy, abort and drop.
#![allow(unsafe_code)] // Calls NCCL.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use super::communicator::Communicator;
use super::shared::{ABORT_LIMIT, CallGuard, Shared, check_no_open_group};
use super::state::Purpose;
use crate::backend::call;
use crate::buffer::MemorySpace;
use crate::error::{Error, Result, ResultCode};
use crate::observer::{CommunicatorEvent, Observer};
use crate::sys;

const DESTROY: &str = "destroy";

/// A communicator that is finalized, but not destroyed yet; see [`Communicator::finalize`]. Dropping it has the same effect as
/// dropping a [`Communicator`].
///
/// ```
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let finalized: Vec<_> = comms.into_iter().map(|comm| comm.finalize()).collect::<Result<_, _>>()?;
/// finalized.into_iter().try_for_each(|comm| comm.destroy())?;
/// # Ok::<(), libnccl::Error>(())
/// ```
#[derive(Debug)]
pub struct Finalized(Communicator);

impl Communicator {
    /// Stops this rank's work in progress, and rejects new work. The communicator can then only be split, shrunk, destroyed or
    /// aborted. NCCL does not notify the other ranks, so every rank must call this. On the CPU backend, the other ranks'
    /// operations fail with an error that names this rank. For an example, see [`shrink`](Self::shrink). Since NCCL 2.28.7.
    #[doc(alias = "ncclCommRevoke")]
    #[doc(alias = "NCCL_REVOKE_DEFAULT")]
    pub fn revoke(&self) -> Result<()> {
        let flags = sys::NCCL_REVOKE_DEFAULT.cast_signed();
        // A query, because it is meant for communicators that have failed.
        self.run_ungrouped("revoke", Purpose::Query, || {
            // SAFETY: a live communicator.
            unsafe { call!(self.library(), ncclCommRevoke(self.raw(), flags)) }
        })?;
        self.is_stopped.store(true, Relaxed);
        Ok(())
    }

    /// Completes the work in progress. All ranks must call this. The communicator can then only be destroyed. Since NCCL 2.14.3.
    ///
    /// [`destroy`](Self::destroy) also finalizes the communicator. A thread with several communicators should finalize all of
    /// them before it destroys any; see [`Finalized`].
    ///
    /// # Errors
    /// For the errors, see [`Communicator`](Self#errors). After any error, the communicator is dropped or aborted.
    #[doc(alias = "ncclCommFinalize")]
    pub fn finalize(self) -> Result<Finalized> {
        self.finalize_for("finalize")
    }

    fn finalize_for(self, call: &'static str) -> Result<Finalized> {
        self.run_ungrouped(call, Purpose::WhileSuspended, || {
            self.shared.is_finalized.store(true, Relaxed);
            // SAFETY: a live communicator.
            unsafe { call!(self.library(), ncclCommFinalize(self.shared.raw)) }
        })?;
        Ok(Finalized(self))
    }

    /// Destroys the communicator once its work in progress is complete. The other ranks must destroy their communicators too.
    ///
    /// A communicator that has failed is aborted instead, as its work may never end.
    ///
    /// Without a [timeout](crate::config::Config::timeout) the wait has no limit. On a GPU, NCCL also waits for CUDA graphs with
    /// work of the communicator, so destroy such graphs first.
    ///
    /// # Errors
    /// - [`Error::Nccl`] if NCCL reports a failure. The communicator is freed nevertheless.
    /// - [`Error::Nccl`] if the communicator has an [asynchronous error](Self::async_error). The communicator is then aborted.
    /// - [`Error::InvalidUsage`] while a group is open on this thread; the communicator is then dropped.
    /// - [`Error::Timeout`] after the timeout. The communicator is then aborted.
    /// - [`Error::Timeout`] if all work has ended, but NCCL takes too long to free the communicator on a GPU. NCCL then continues
    ///   in the background.
    #[doc(alias = "ncclCommDestroy")]
    pub fn destroy(self) -> Result<()> {
        check_no_open_group(self.library(), DESTROY)?;
        if self.shared.state.is_failed() {
            return self.abort();
        }
        // There is no way to wait for the destruction of a nonblocking communicator, but there is for finalization.
        let needs_finalize = self.timeout.is_some() && !self.is_stopped.load(Relaxed);
        let finalized = if needs_finalize { self.finalize_for(DESTROY)? } else { Finalized(self) };
        finalized.destroy()
    }

    /// Aborts the communicator and its work in progress immediately. On the CPU backend, work of other ranks that needs this rank
    /// then fails. With NCCL, such work may wait forever.
    ///
    /// On a GPU, NCCL cannot free a communicator while a CUDA graph contains its work, or while a kernel of another communicator
    /// keeps the device busy. If this takes longer than 5 s, the method returns, and the abort continues in the background. To
    /// abort several communicators of one thread, use [`AbortHandle::abort_all`].
    ///
    /// On host memory, this method waits until no other process accesses this rank's memory.
    /// [`Config::timeout`](crate::config::Config::timeout) describes what happens if another process is stopped during an access.
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL reports a failure; the communicator is freed nevertheless. [`Error::Timeout`] if the abort
    /// continues in the background.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(self) -> Result<()> {
        self.shared.abort_unless_ended()
    }
}

impl Finalized {
    /// Frees the communicator. For the errors, see [`Communicator::destroy`].
    pub fn destroy(self) -> Result<()> {
        let Self(communicator) = self;
        check_no_open_group(communicator.library(), DESTROY)?;
        // With an asynchronous error, or while it is in progress, NCCL would return before it frees anything, and the
        // communicator could not be aborted any more. Dropping one that has failed aborts it.
        let ready = communicator.query(DESTROY, || communicator.wait_within(DESTROY, None));
        ready.inspect_err(|_| communicator.shared.state.fail())?;
        if !communicator.shared.state.end() {
            return Err(Error::Aborted { call: DESTROY });
        }
        // The rest waits for no other rank, so the timeout does not apply to it.
        let limit = communicator.timeout.map(|timeout| timeout.max(ABORT_LIMIT));
        // SAFETY: the state has chosen this thread to tear it down.
        unsafe { communicator.shared.destroy(limit) }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let shared = &self.shared;
        if shared.state.end() {
            // SAFETY: the state has chosen this thread to tear it down.
            let _ = unsafe {
                if self.is_borrowed() {
                    shared.notify(CommunicatorEvent::Ended);
                    Ok(())
                } else if shared.state.is_failed() {
                    shared.abort()
                } else if self.memory_space() == MemorySpace::Host {
                    // All work is complete when a call returns.
                    shared.destroy(None)
                } else {
                    // Destroying would wait for the other ranks if work is unfinished, and a drop must not hang.
                    shared.notify(CommunicatorEvent::Discarded);
                    shared.abort()
                }
            };
        }
        if shared.is_ending.load(Relaxed) {
            // NCCL may still read them.
            std::mem::forget(self.options.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// A handle to abort a communicator from another thread, such as a watchdog or a signal-handling thread, and to query the
/// communicator's health.
///
/// NCCL allows only one thread at a time to use a communicator. So the handle never calls NCCL at the same time as the *owner*,
/// the thread that uses the communicator:
///
/// - If the owner is in neither a call nor an open group, the handle aborts the communicator immediately.
/// - If the owner waits in a call, and the communicator has a [timeout](crate::config::Config::timeout), the owner aborts the
///   communicator within about a millisecond. The owner's call returns [`Error::Aborted`].
/// - If the owner's call blocks inside NCCL, or if the owner has an open group, the owner aborts the communicator when the call
///   or the group ends.
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
    pub(super) shared: Arc<Shared>,
}

/// The health of a communicator; see [`AbortHandle::health`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// No asynchronous error is known.
    Good,
    /// The communicator has this asynchronous error.
    Failed(Error),
    /// The thread that uses the communicator is in a call or an open group, so the communicator cannot be queried.
    Busy,
    /// The communicator has been destroyed or aborted.
    Ended,
}

impl AbortHandle {
    /// Aborts the communicator as [`Communicator::abort`] does, with the same errors. If the owner is in a call or an open group,
    /// this method only requests the abort. Does nothing if the communicator has already been destroyed or aborted.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(&self) -> Result<()> {
        if !self.shared.state.abort() {
            return Ok(());
        }
        // SAFETY: the state has chosen this thread to tear it down.
        unsafe { self.shared.abort() }
    }

    /// Aborts the communicators of all handles. Communicators of one library are aborted in one NCCL group, because the abort of
    /// one may wait for work of another. If the owner of a communicator is in a call or an open group, the owner aborts that
    /// communicator. For the errors, see [`abort`](Self::abort).
    ///
    /// ```
    /// use libnccl::communicator::{AbortHandle, Health};
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// AbortHandle::abort_all(comms.iter().map(|comm| comm.abort_handle()))?;
    /// assert!(comms.iter().all(|comm| comm.abort_handle().health() == Health::Ended));
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    pub fn abort_all(handles: impl IntoIterator<Item = Self>) -> Result<()> {
        // The iterator may panic, so it is exhausted before the first abort.
        let mut remaining: Vec<_> = handles.into_iter().map(|handle| handle.shared).collect();
        remaining.retain(|shared| shared.state.abort());
        let mut result = Ok(());
        while let Some(first) = remaining.first() {
            let library = Arc::clone(&first.library);
            let (same, others) = remaining.into_iter().partition(|shared| shared.library.is_same(&library));
            // SAFETY: the state of each has chosen this thread to tear it down.
            let aborted = unsafe { Shared::abort_all("abort_all", same) };
            result = result.and(aborted);
            remaining = others;
        }
        result
    }

    /// Returns the health of the communicator; [`Health::Busy`] while the owner is in a call or an open group. If the owner
    /// starts a call during the short query of this method, the call waits until the query is complete. For an example, see
    /// [`abort_all`](Self::abort_all).
    #[doc(alias = "ncclCommGetAsyncError")]
    #[must_use]
    pub fn health(&self) -> Health {
        const CALL: &str = "health";
        let Self { shared } = self;
        if let Ok(_guard) = CallGuard::for_object(shared, CALL) {
            return match shared.poll() {
                Ok(ResultCode::SUCCESS | ResultCode::IN_PROGRESS) => Health::Good,
                Ok(code) => Health::Failed(shared.library.error(CALL, code)),
                Err(error) => Health::Failed(error),
            };
        }
        if shared.state.is_ended() { Health::Ended } else { Health::Busy }
    }

    /// Notifies the observers of the communicator that a call takes too long.
    #[doc(hidden)]
    pub fn report_stall(&self) {
        self.shared.notify(CommunicatorEvent::Stalled);
    }

    #[doc(hidden)]
    pub fn observer<T: Observer>(&self) -> Option<&T> {
        self.shared.observers.find()
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("state", &self.shared.state).finish_non_exhaustive()
    }
}

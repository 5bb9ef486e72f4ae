use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use super::communicator::Communicator;
use super::inside::check_no_open_group;
use super::shared::{ABORT_LIMIT, Shared};
use super::state::Purpose;
use crate::backend::call;
use crate::buffer::MemorySpace;
use crate::error::{Error, InvalidArgumentKind, Result};
use crate::nccl::Nccl;
use crate::observer::CommunicatorEvent;

/// A communicator after [`Communicator::finalize`], which only remains to be destroyed or aborted.
///
/// ```
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let finalized: Vec<_> = comms.into_iter().map(|comm| comm.finalize()).collect::<Result<_, _>>()?;
/// for finalized in finalized {
///     finalized.destroy()?;
/// }
/// # Ok::<(), libnccl::Error>(())
/// ```
#[derive(Debug)]
pub struct Finalized(Communicator);

impl Communicator {
    /// Completes the work in progress, together with the other ranks; the result only remains to be destroyed. Since
    /// NCCL 2.14.3.
    ///
    /// [`destroy`](Self::destroy) does this by itself. Finalizing first lets one thread finalize all its
    /// communicators before it destroys any; see [`Finalized`]. The communicator cannot be used any more.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Unsupported`], or [`Error::Timeout`]; in each case the communicator is dropped or aborted.
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

    /// Destroys the communicator after the work in progress; the other ranks have to end theirs too.
    ///
    /// A communicator that has failed is aborted instead, as its work may never end.
    ///
    /// Without a [timeout](crate::config::Config::timeout) this waits as long as it takes. On a GPU, NCCL also waits until the
    /// CUDA graphs with work of the communicator are gone, so destroy those first.
    ///
    /// ```
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// for comm in comms {
    ///     comm.destroy()?;
    /// }
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL reports a failure, or with the [asynchronous error](Self::async_error), with which the
    /// communicator is aborted; the communicator is gone nevertheless. [`Error::InvalidUsage`] while a group is open on
    /// this thread; the communicator is then dropped. [`Error::Timeout`], after which it is aborted.
    #[doc(alias = "ncclCommDestroy")]
    pub fn destroy(self) -> Result<()> {
        self.destroy_for("destroy")
    }

    fn destroy_for(self, call: &'static str) -> Result<()> {
        check_no_open_group(self.library(), call)?;
        if self.shared.state.is_failed() {
            return self.abort();
        }
        // There is no way to wait for the destruction of a nonblocking communicator, but there is for finalization.
        let needs_finalize = self.timeout.is_some() && !self.is_stopped.load(Relaxed);
        let finalized = if needs_finalize { self.finalize_for(call)? } else { Finalized(self) };
        finalized.destroy_for(call)
    }

    /// Destroys several communicators of one process; all of them are ended, even if one fails.
    ///
    /// ```
    /// use libnccl::Communicator;
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// Communicator::destroy_all(comms)?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first error of [`destroy`](Self::destroy).
    pub fn destroy_all(communicators: impl IntoIterator<Item = Self>) -> Result<()> {
        let ended: Vec<_> =
            communicators.into_iter().map(|communicator| communicator.destroy_for("destroy_all")).collect();
        ended.into_iter().collect()
    }

    /// Aborts the communicator and its work in progress at once. The work of the other ranks fails.
    ///
    /// On a GPU, NCCL keeps a communicator as long as there is a CUDA graph with its work, and as long as a kernel of
    /// another communicator keeps the device busy. So another thread ends it, and this one waits 5 s at most; the end
    /// then goes on in the background. [`Nccl::abort_all`] aborts several communicators of one thread.
    ///
    /// On host memory, it waits until no other process accesses memory of this rank. For a process that is stopped meanwhile,
    /// see [`Config::timeout`](crate::config::Config::timeout). Without a timeout, the call also waits for a stopped process that copies
    /// memory which is not from [`alloc`](Nccl::alloc).
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL reports a failure; the communicator is gone nevertheless. [`Error::Timeout`] if the end
    /// goes on in the background.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(self) -> Result<()> {
        if self.shared.state.end() {
            // SAFETY: the state has told this thread to end it.
            return unsafe { self.shared.abort() };
        }
        Ok(())
    }
}

impl Nccl {
    /// Aborts several communicators of this process together; see [`Communicator::abort`].
    ///
    /// On GPUs, aborting them one after the other takes longer: the end of the first may wait for work of the second,
    /// which is not aborted yet.
    ///
    /// ```
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0, 1])?;
    /// nccl.abort_all(comms)?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Communicator::abort`], with one limit for all of them. [`Error::InvalidArgument`] if a communicator
    /// belongs to another library; they are then dropped one by one.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort_all(&self, communicators: impl IntoIterator<Item = Communicator>) -> Result<()> {
        const CALL: &str = "abort_all";
        let communicators: Vec<_> = communicators.into_iter().collect();
        if !communicators.iter().all(|communicator| self.library.is_same(communicator.library())) {
            let problem = "a communicator belongs to another library";
            return Err(Error::argument(CALL, InvalidArgumentKind::Communicator, problem));
        }
        let live = communicators.iter().filter(|communicator| communicator.shared.state.end());
        let live = live.map(|communicator| communicator.shared.clone()).collect();
        // SAFETY: the state of each has told this thread to end it.
        unsafe { Shared::abort_all(CALL, live) }
    }
}

impl Finalized {
    /// Frees the communicator; see [`Communicator::destroy`].
    ///
    /// # Errors
    /// As for [`Communicator::destroy`].
    pub fn destroy(self) -> Result<()> {
        self.destroy_for("destroy")
    }

    fn destroy_for(self, call: &'static str) -> Result<()> {
        check_no_open_group(self.0.library(), call)?;
        let Self(communicator) = self;
        // With an asynchronous error, or while it is in progress, NCCL would return before it frees anything, and
        // nothing could end the communicator any more. Dropping one that has failed aborts it.
        let ready = communicator.query(call, || communicator.wait_within(call, None));
        ready.inspect_err(|_| communicator.shared.state.fail())?;
        if !communicator.shared.state.end() {
            return Err(Error::Aborted { call });
        }
        // What remains to be done waits for no other rank, and is not what the timeout is about.
        let limit = communicator.timeout.map(|timeout| timeout.max(ABORT_LIMIT));
        // SAFETY: the state has told this thread to end it.
        unsafe { communicator.shared.destroy(limit) }
    }

    /// Aborts the communicator; see [`Communicator::abort`].
    ///
    /// # Errors
    /// As for [`Communicator::abort`].
    pub fn abort(self) -> Result<()> {
        self.0.abort()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.shared.state.end() {
            self.end_at_drop();
        }
        if self.shared.is_ending.load(Relaxed) {
            // NCCL may still read them.
            std::mem::forget(self.options.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Communicator {
    /// Ends the communicator, as the state has told this thread.
    fn end_at_drop(&self) {
        if self.shared.is_borrowed {
            return self.shared.tell(CommunicatorEvent::Ended);
        }
        // Destroying waits for the other ranks if work is unfinished, and a drop must not hang. On host memory all
        // work is complete when a call returns.
        let destroys = self.memory_space() == MemorySpace::Host && !self.shared.state.is_failed();
        if self.memory_space() == MemorySpace::Device && !self.shared.state.is_failed() {
            self.shared.tell(CommunicatorEvent::Discarded);
        }
        // SAFETY: the state has told this thread to end it.
        let _ = unsafe { if destroys { self.shared.destroy(None) } else { self.shared.abort() } };
    }
}

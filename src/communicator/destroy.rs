use std::sync::atomic::Ordering::Relaxed;

use super::handle::Communicator;
use super::shared::Shared;
use crate::backend::call;
use crate::group::open::check_no_open_group;
use crate::{Error, MemorySpace, Result};

/// A communicator after [`Communicator::finalize`], which only remains to be destroyed or aborted.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let finalized: Vec<_> = comms.into_iter().map(|comm| comm.finalize()).collect::<Result<_, _>>()?;
/// for finalized in finalized {
///     finalized.destroy()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Finalized(Communicator);

impl Communicator {
    /// Completes the work in progress, together with the other ranks; the result only remains to be destroyed. Since
    /// NCCL 2.14.3.
    ///
    /// [`destroy`](Self::destroy) does this by itself. Finalizing first lets one thread finalize all its
    /// communicators before it destroys any; see [`Finalized`]. The communicator cannot be used any more:
    ///
    /// ```compile_fail,E0382
    /// # fn main() -> libnccl::Result<()> {
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// let finalized = comm.finalize()?;
    /// comm.rank();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Unsupported`], or [`Error::Timeout`]; in each case the communicator is aborted.
    #[doc(alias = "ncclCommFinalize")]
    pub fn finalize(self) -> Result<Finalized> {
        self.finalize_for("finalize")
    }

    /// Finalizes it on behalf of the method `call`.
    fn finalize_for(self, call: &'static str) -> Result<Finalized> {
        self.run_ungrouped(call, || {
            // SAFETY: a live communicator.
            unsafe { call!(self.library(), ncclCommFinalize(self.shared.raw)) }
        })?;
        Ok(Finalized(self))
    }

    /// Destroys the communicator after the work in progress; the other ranks have to end theirs too.
    ///
    /// A communicator that has failed is aborted instead, as its work may never end.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// for comm in comms {
    ///     comm.destroy()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The communicator cannot be used any more:
    ///
    /// ```compile_fail,E0382
    /// # fn main() -> libnccl::Result<()> {
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// comm.destroy()?;
    /// comm.rank();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL reports a failure; the communicator is gone nevertheless.
    /// [`Error::InvalidUsage`] while a group is open on this thread; the communicator is then aborted, as after
    /// [`Error::Timeout`].
    #[doc(alias = "ncclCommDestroy")]
    pub fn destroy(self) -> Result<()> {
        check_no_open_group("destroy")?;
        if self.shared.state.is_failed() {
            return self.abort();
        }
        // There is no way to wait for the destruction of a nonblocking communicator, but there is for finalization.
        let needs_finalize = self.timeout.is_some() && !self.is_stopped.load(Relaxed);
        let finalized = if needs_finalize { self.finalize_for("destroy")? } else { Finalized(self) };
        finalized.destroy()
    }

    /// Destroys several communicators of one process; all of them are ended, even if one fails.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::Communicator;
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// Communicator::destroy_all(comms)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first error of [`destroy`](Self::destroy).
    pub fn destroy_all(communicators: impl IntoIterator<Item = Self>) -> Result<()> {
        let ended: Vec<_> = communicators.into_iter().map(Self::destroy).collect();
        ended.into_iter().collect()
    }

    /// Aborts the communicator and its work in progress at once. The work of the other ranks fails.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// comm.abort()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The communicator cannot be used any more:
    ///
    /// ```compile_fail,E0382
    /// # fn main() -> libnccl::Result<()> {
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// comm.abort()?;
    /// comm.rank();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL reports a failure; the communicator is gone nevertheless.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(self) -> Result<()> {
        if self.shared.state.end() {
            // SAFETY: the state has told this thread to end it.
            return unsafe { self.shared.abort() };
        }
        Ok(())
    }
}

impl Finalized {
    /// Frees the communicator; see [`Communicator::destroy`].
    ///
    /// # Errors
    /// As for [`Communicator::destroy`].
    pub fn destroy(self) -> Result<()> {
        check_no_open_group("destroy")?;
        let Shared { library, raw, state, .. } = &*self.0.shared;
        if !state.end() {
            return Err(Error::Aborted { call: "destroy" });
        }
        // SAFETY: a live communicator, which nothing uses after this.
        let ended = unsafe { call!(library, ncclCommDestroy(*raw)) };
        ended.inspect_err(|_| library.end_leaked_groups()).map(drop)
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
        if !self.shared.state.end() {
            return;
        }
        let Shared { library, raw, state, .. } = &*self.shared;
        // Destroying waits for the other ranks if work is unfinished, and a drop must not hang. On host memory all
        // work is complete when a call returns.
        let end = match library.memory_space {
            MemorySpace::Host if !state.is_failed() => library.functions.ncclCommDestroy,
            _ => library.functions.ncclCommAbort,
        };
        #[cfg(feature = "log")]
        if library.memory_space == MemorySpace::Device && !state.is_failed() && !std::thread::panicking() {
            let Self { rank, size, .. } = self;
            log::warn!(
                "dropping the communicator of rank {rank} of {size} aborts it and its unfinished work; call `destroy` \
                 instead"
            );
        }
        if let Some(end) = end {
            // SAFETY: a live communicator, which nothing uses after this.
            unsafe { end(*raw) };
        }
    }
}

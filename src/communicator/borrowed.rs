use std::marker::PhantomData;
use std::ops::Deref;

use super::communicator::Communicator;
use super::shared::Shared;
use crate::{Nccl, Result, sys};

/// A communicator that other code owns and ends; see [`Communicator::borrow_raw`]. It is used like a [`Communicator`].
///
/// Nothing ends it here: neither a drop nor an [`AbortHandle`](crate::AbortHandle), which only ends its use. It has no
/// timeout.
#[derive(Debug)]
pub struct BorrowedCommunicator<'a> {
    communicator: Communicator,
    owner: PhantomData<&'a ()>,
}

impl Communicator {
    /// Borrows a communicator that other code has created with `nccl`, and that it ends later.
    ///
    /// ```
    /// use libnccl::{Communicator, ReduceOp, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let owner = nccl.init_all(&[0])?.remove(0);
    /// // SAFETY: a live communicator of `nccl`, which nothing else uses as long as it is borrowed.
    /// let comm = unsafe { Communicator::borrow_raw(&nccl, owner.as_raw()) }?;
    /// comm.all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// drop(comm);
    /// owner.destroy()?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`from_raw`](Self::from_raw); the communicator is not aborted.
    ///
    /// # Safety
    /// `raw` is a live communicator of `nccl`, in no open group and not suspended. During `'a` it is not ended, and nothing else
    /// uses it while a method of the result runs, or a group that it takes part in is open. The rule for [groups of other
    /// code](crate::Nccl#groups-of-other-code) holds.
    pub unsafe fn borrow_raw<'a>(nccl: &Nccl, raw: sys::ncclComm_t) -> Result<BorrowedCommunicator<'a>> {
        let shared = Shared::borrowed(&nccl.library, raw);
        // SAFETY: the caller guarantees that the handle is live, and used by nothing else at the same time.
        let communicator = unsafe { Self::from_shared("borrow_raw", shared, None, None) }?;
        Ok(BorrowedCommunicator { communicator, owner: PhantomData })
    }
}

impl Deref for BorrowedCommunicator<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        &self.communicator
    }
}

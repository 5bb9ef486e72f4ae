#![allow(unsafe_code)] // Implements `Send` and `Sync`.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use super::registered::Registered;
use super::registration::Registration;
use crate::Result;
use crate::communicator::Shared;

/// A [`Registration`](crate::Registration) that does not borrow its communicator, so that a struct can hold both: the
/// registration first, as fields are dropped in their order. For an example, see [`OwnedWindow`](crate::OwnedWindow).
///
/// It ends as an [`OwnedWindow`](crate::OwnedWindow) does, but needs no `assume_idle` on host memory.
pub struct OwnedRegistration {
    registered: Registered<Arc<Shared>>,
}

// SAFETY: the handle is a name for NCCL; it is used once, by the end, for which the communicator's state lets one thread
// at a time into NCCL.
unsafe impl Send for OwnedRegistration {}
// SAFETY: a shared reference only gives the handle.
unsafe impl Sync for OwnedRegistration {}

impl Registration<'_> {
    /// Ends the borrow of the communicator, so that a struct can hold both; see [`OwnedRegistration`].
    ///
    /// # Errors
    /// [`Error::InvalidUsage`](crate::Error::InvalidUsage) if the communicator is a
    /// [`BorrowedCommunicator`](crate::BorrowedCommunicator).
    pub fn into_owned(self) -> Result<OwnedRegistration> {
        let shared = self.registered.owner.shared().owned("into_owned")?;
        Ok(OwnedRegistration { registered: self.registered.into_owner(shared) })
    }
}

impl OwnedRegistration {
    /// Returns the C handle; null if NCCL does not use the registration, which is not an error.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.registered.handle
    }

    /// Ends the registration, as dropping it does, and returns errors. Since NCCL 2.19.3.
    ///
    /// # Errors
    /// The errors of [`Registration::deregister`](crate::Registration::deregister);
    /// [`Error::InvalidUsage`](crate::Error::InvalidUsage) while the communicator is in a call or an open group, after which
    /// the buffer is deregistered; [`Error::Aborted`](crate::Error::Aborted) after the end of the communicator on a GPU, and
    /// after [`Communicator::into_raw`](crate::Communicator::into_raw).
    #[doc(alias = "ncclCommDeregister")]
    pub fn deregister(mut self) -> Result<()> {
        self.registered.end()
    }
}

impl fmt::Debug for OwnedRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRegistration").field("handle", &self.registered.handle).finish_non_exhaustive()
    }
}

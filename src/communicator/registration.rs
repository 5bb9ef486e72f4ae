#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use super::Communicator;
use crate::backend::call;
use crate::memory::Allocation;
use crate::{Element, Error, NcclBuffer, Result};

/// A buffer that a communicator knows of, so that operations need no copies; see [`Communicator::register`], where
/// there is an example. Since NCCL 2.19.3.
///
/// It cannot outlive its communicator:
///
/// ```compile_fail,E0505
/// # fn main() -> libnccl::Result<()> {
/// let nccl = libnccl_cpu::nccl();
/// let comm = nccl.init_all(&[0])?.remove(0);
/// let registration = comm.register(&nccl.alloc::<f32>(1024)?)?;
/// comm.destroy()?;
/// drop(registration);
/// # Ok(())
/// # }
/// ```
///
/// It does not borrow the buffer, which stays free for every operation, but owns the memory together with it:
/// whichever goes first, the memory is freed after both. On a GPU, dropping it while work may use the buffer (see
/// [`NcclBuffer`]) leaves the registration to the end of the communicator, and leaks the memory.
#[doc(alias = "ncclCommRegister")]
#[doc(alias = "ncclCommDeregister")]
pub struct Registration<'c> {
    communicator: &'c Communicator,
    /// Null if NCCL has no use for it.
    handle: *mut c_void,
    /// Until it is deregistered.
    memory: Option<Arc<Allocation>>,
}

impl Communicator {
    /// Tells NCCL of a buffer that operations will use, so that it can skip its staging copies. Local to this
    /// rank. Since NCCL 2.19.3.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// # use libnccl::{ReduceOp, StreamRef};
    /// # let nccl = libnccl_cpu::nccl();
    /// # let comm = nccl.init_all(&[0])?.remove(0);
    /// # fn synchronize() {}
    /// let mut buffer = nccl.alloc::<f32>(1 << 20)?;
    /// let registration = comm.register(&buffer)?;
    /// comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// synchronize(); // cudaStreamSynchronize
    /// // SAFETY: all work that uses the buffer was on that stream.
    /// unsafe { buffer.assume_idle() };
    /// registration.deregister()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the buffer is empty, or in the wrong memory; [`Error::InvalidUsage`] while a
    /// group is open on this thread, or after one that failed; [`Error::Unsupported`]; [`Error::Nccl`].
    #[doc(alias = "ncclCommRegister")]
    pub fn register<T: Element>(&self, buffer: &NcclBuffer<T>) -> Result<Registration<'_>> {
        const CALL: &str = "register";
        self.can_register(CALL, buffer)?;
        let allocation = buffer.allocation();
        let mut handle = ptr::null_mut();
        self.immediate(CALL, || {
            let (address, bytes) = (allocation.as_ptr(), allocation.bytes());
            // SAFETY: a live communicator, memory of so many bytes, and a place to write a handle to, which this
            // function writes at once. The registration keeps the memory allocated.
            unsafe { call!(self.library(), ncclCommRegister(self.raw(), address, bytes, &raw mut handle)) }
        })?;
        Ok(Registration { communicator: self, handle, memory: Some(Arc::clone(allocation)) })
    }

    pub(super) fn can_register<T: Element>(&self, call: &'static str, buffer: &NcclBuffer<T>) -> Result<()> {
        if buffer.is_empty() {
            return Err(Error::argument(call, "the buffer is empty; expected one element at least"));
        }
        self.accepts::<T, 1>(call, [Some(buffer.memory_space())])
    }
}

impl Registration<'_> {
    /// The C handle; null if NCCL has no use for the registration, which is no error.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.handle
    }

    /// Ends it, as dropping it does, and reports; for an example, see [`Communicator::register`]. Since NCCL 2.19.3.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] on a GPU if work may still use the buffer; [`Error::Nccl`]. The registration is
    /// left to the end of the communicator then, and the memory leaked.
    #[doc(alias = "ncclCommDeregister")]
    pub fn deregister(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        const CALL: &str = "deregister";
        let Some(memory) = self.memory.take() else { return Ok(()) };
        if self.handle.is_null() {
            return Ok(());
        }
        let (communicator, handle) = (self.communicator, self.handle);
        let ended = memory.require_idle(CALL).and_then(|()| {
            communicator.ask_or_in_group(CALL, || {
                // SAFETY: a registration of this live communicator, ended once, and no work uses the memory.
                unsafe { call!(communicator.library(), ncclCommDeregister(communicator.raw(), handle)) }
            })
        });
        or_aborted(ended).inspect_err(|_| never_free(memory))
    }
}

/// An aborted communicator has no registrations any more.
pub(super) fn or_aborted<R>(ended: Result<R>) -> Result<()> {
    match ended {
        Ok(_) | Err(Error::Aborted { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// NCCL knows memory that could not be deregistered until the communicator ends, and it must not be freed before.
pub(super) fn never_free(memory: Arc<Allocation>) {
    std::mem::forget(memory);
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl fmt::Debug for Registration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("handle", &self.handle).finish_non_exhaustive()
    }
}

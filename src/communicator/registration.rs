#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use super::arguments::check_buffers;
use super::handle::Communicator;
use crate::backend::call;
use crate::memory::Allocation;
use crate::{Element, Error, InvalidArgumentKind, MemorySpace, NcclBuffer, Result};

/// The registration of a buffer with a communicator, which saves operations staging copies; for an example, see
/// [`Communicator::register`]. Since NCCL 2.19.3.
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
/// It does not borrow the buffer, which remains usable in every operation. The two share the memory, which is freed
/// after both are dropped. On a GPU, if the registration is dropped while work may use the buffer (see [`NcclBuffer`]),
/// or after an abort, it lasts until the end of the communicator, and the memory is leaked.
#[doc(alias = "ncclCommRegister")]
#[doc(alias = "ncclCommDeregister")]
pub struct Registration<'c> {
    communicator: &'c Communicator,
    /// The handle; null if NCCL does not use the registration.
    handle: *mut c_void,
    /// The memory; `None` once it is deregistered.
    memory: Option<Arc<Allocation>>,
}

impl Communicator {
    /// Registers a buffer that operations will use, so that NCCL can skip its staging copies. Other ranks need not take
    /// part. Since NCCL 2.19.3.
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
        self.check_registrable(CALL, buffer)?;
        let allocation = buffer.allocation();
        let (mut handle, mut is_registered) = (ptr::null_mut(), false);
        self.run_ungrouped(CALL, || {
            let (address, bytes) = (allocation.as_ptr(), allocation.bytes());
            // SAFETY: a live communicator, memory of `bytes` bytes, and an out-parameter, which is written before the
            // call returns. The registration keeps the memory allocated.
            unsafe { call!(self.library(), ncclCommRegister(self.raw(), address, bytes, &raw mut handle)) }
                .inspect(|_| is_registered = true)
        })
        // If the wait failed, NCCL has the memory nevertheless.
        .inspect_err(|_| {
            if is_registered {
                leak(Arc::clone(allocation));
            }
        })?;
        Ok(Registration { communicator: self, handle, memory: Some(Arc::clone(allocation)) })
    }

    /// Returns an error if a buffer cannot be registered.
    pub(super) fn check_registrable<T: Element>(
        &self,
        call: &'static str,
        buffer: &NcclBuffer<T>,
    ) -> Result<()> {
        if buffer.is_empty() {
            return Err(Error::argument(
                call,
                InvalidArgumentKind::Length,
                "the buffer is empty; expected at least one element",
            ));
        }
        check_buffers(self, call, T::DATA_TYPE, [Some(buffer.memory_space())])
    }
}

impl Registration<'_> {
    /// Returns the C handle; null if NCCL does not use the registration, which is not an error.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.handle
    }

    /// Ends the registration, as dropping it does, and returns errors; for an example, see [`Communicator::register`].
    /// Since NCCL 2.19.3.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] on a GPU if work may still use the buffer; [`Error::Aborted`] on a GPU after an abort, as
    /// NCCL then keeps it until the last rank of the process ends; [`Error::Nccl`]. In these cases it lasts until the
    /// end of the communicator, and the memory is leaked.
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
        let ended = memory.check_idle(CALL).and_then(|()| {
            communicator.query_or_in_group(CALL, || {
                // SAFETY: a registration of this live communicator, ended only here; no work uses the memory.
                unsafe { call!(communicator.library(), ncclCommDeregister(communicator.raw(), handle)) }
            })
        });
        ok_if_aborted(communicator, ended).inspect_err(|_| leak(memory))
    }
}

/// Treats an aborted communicator of the CPU implementation as success, as the abort has ended its registrations.
///
/// NCCL ends those of all ranks in the process together, when the last of these ranks ends, which nothing tells here.
pub(super) fn ok_if_aborted<R>(communicator: &Communicator, ended: Result<R>) -> Result<()> {
    match ended {
        Err(Error::Aborted { .. }) if communicator.memory_space() == MemorySpace::Host => Ok(()),
        ended => ended.map(drop),
    }
}

/// Leaks memory that could not be deregistered: NCCL may use it until the communicator ends.
pub(super) fn leak(memory: Arc<Allocation>) {
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

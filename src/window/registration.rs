//! Buffers that are registered with a communicator, so that NCCL can skip its staging copies.
#![allow(unsafe_code)] // Calls C.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use crate::backend::call;
use crate::buffer::{Allocation, NcclBuffer};
use crate::communicator::{Communicator, Handle, Object, OwnedObject, Purpose};
use crate::data_type::Element;
use crate::error::{Error, InvalidArgumentKind, Result};

/// The registration of a buffer with a communicator, so that NCCL can skip its staging copies; for an example, see
/// [`Communicator::register_raw`]. Since NCCL 2.19.3.
///
/// A registration borrows neither the communicator nor the buffer, so that a struct can hold all three. The buffer remains usable
/// in every operation. The buffer and the registration share the memory, which is freed only after both have been dropped.
///
/// Dropping a registration deregisters the buffer. If the communicator is in a call or an open group, this happens when that call
/// or group ends. On a GPU, the memory is leaked if the registration is dropped while work may use the buffer (see
/// [`NcclBuffer`]), or after the teardown of the communicator.
#[doc(alias = "ncclCommRegister")]
#[doc(alias = "ncclCommDeregister")]
pub struct Registration(OwnedObject);

impl Communicator {
    /// Registers a buffer that operations will use, so that NCCL can skip its staging copies. Other ranks need not take
    /// part. Since NCCL 2.19.3.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the buffer is empty, in the wrong memory, or on another device.
    #[doc(alias = "ncclCommRegister")]
    pub fn register<T: Element>(&self, buffer: &NcclBuffer<T>) -> Result<Registration> {
        const CALL: &str = "register";
        self.check_registrable(CALL, buffer)?;
        let allocation = buffer.allocation();
        let (address, bytes) = (allocation.as_ptr(), allocation.bytes());
        // SAFETY: memory of `bytes` bytes, which the registration keeps allocated.
        unsafe { self.register_memory(CALL, address, bytes, Some(Arc::clone(allocation))) }
    }

    /// Registers memory of another allocator, such as cudarc's or a framework's, so that NCCL can skip its staging copies. For an
    /// [`NcclBuffer`], use [`register`](Self::register). Since NCCL 2.19.3.
    ///
    /// NCCL registers memory of `cudaMalloc` and `cuMemCreate`. For other memory, it may return an error, or return success
    /// without registering the memory. On the CPU backend, operations do not use the registration.
    ///
    /// ```
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// let mut arena = vec![0.5_f32; 1 << 20];
    /// // SAFETY: the arena outlives the registration, and work with it is complete when its call returns.
    /// let registration = unsafe { comm.register_raw(arena.as_mut_ptr().cast(), size_of_val(&arena[..])) }?;
    /// comm.all_reduce_in_place(&mut arena, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// registration.deregister()?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the pointer is null or `bytes` is 0.
    ///
    /// # Safety
    /// - `pointer` must be the address of `bytes` bytes on the communicator's device.
    /// - The bytes must stay allocated until [`deregister`](Registration::deregister) has succeeded. If `deregister` is not
    ///   called or fails, or if `register_raw` fails in NCCL, the bytes must stay allocated until all communicators of this
    ///   process are destroyed or aborted.
    /// - All work that uses the bytes must have run before the registration is dropped, and before the bytes are freed.
    #[doc(alias = "ncclCommRegister")]
    pub unsafe fn register_raw(&self, pointer: *mut c_void, bytes: usize) -> Result<Registration> {
        const CALL: &str = "register_raw";
        if pointer.is_null() {
            return Err(Error::argument(CALL, InvalidArgumentKind::Address, "the pointer is null"));
        }
        if bytes == 0 {
            let problem = "the size is 0; expected at least one byte";
            return Err(Error::argument(CALL, InvalidArgumentKind::Length, problem));
        }
        // SAFETY: the caller guarantees it.
        unsafe { self.register_memory(CALL, pointer, bytes, None) }
    }

    /// Registers `memory` or, without it, the memory of the caller of [`register_raw`](Self::register_raw).
    ///
    /// # Safety
    /// With `memory`, `address` must be the address of `bytes` bytes of it. Without `memory`, the conditions of
    /// [`register_raw`](Self::register_raw) must hold.
    unsafe fn register_memory(
        &self,
        call: &'static str,
        address: *mut c_void,
        bytes: usize,
        memory: Option<Arc<Allocation>>,
    ) -> Result<Registration> {
        let (mut handle, mut is_registered) = (ptr::null_mut(), false);
        let registered = self.run_ungrouped(call, Purpose::Work, || {
            // SAFETY: a live communicator, memory that the caller guarantees, and an out-parameter, which is written
            // before the call returns.
            unsafe { call!(self.library(), ncclCommRegister(self.raw(), address, bytes, &raw mut handle)) }
                .inspect(|_| is_registered = true)
        });
        if let Err(error) = registered {
            // If the wait failed, NCCL has the memory nevertheless.
            if is_registered {
                Object::new(Handle::Registration(handle), memory).keep(self.shared());
            }
            return Err(error);
        }
        Ok(Registration(OwnedObject::new(self.shared(), Object::new(Handle::Registration(handle), memory))))
    }

    pub(crate) fn check_registrable<T: Element>(
        &self,
        call: &'static str,
        buffer: &NcclBuffer<T>,
    ) -> Result<()> {
        if buffer.is_empty() {
            let problem = "the buffer is empty; expected at least one element";
            return Err(Error::argument(call, InvalidArgumentKind::Length, problem));
        }
        self.check_device(call, buffer.device(), "the buffer")?;
        self.check_buffer(call, T::DATA_TYPE, Some(buffer.memory_space()), "the buffer")
    }
}

impl Registration {
    /// Returns the C handle of the registration. A null handle is not an error: NCCL then does not use the registration.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        match self.0.handle() {
            Some(Handle::Registration(handle)) => *handle,
            _ => ptr::null_mut(),
        }
    }

    /// Deregisters the buffer, as a drop does, and returns errors; for an example, see [`Communicator::register_raw`]. Since
    /// NCCL 2.19.3.
    ///
    /// # Errors
    /// The errors of [`Window::deregister`](crate::window::Window::deregister), which mean the same for a registration as for a
    /// window. After the teardown of the communicator on a GPU, NCCL keeps the registration until all communicators of this
    /// process are destroyed or aborted.
    #[doc(alias = "ncclCommDeregister")]
    pub fn deregister(self) -> Result<()> {
        self.0.end("deregister")
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("handle", &self.as_raw()).finish_non_exhaustive()
    }
}

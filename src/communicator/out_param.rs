use std::ptr;

use crate::backend::Library;
use crate::buffer::MemorySpace;
use crate::error::Result;

/// An out-parameter of NCCL for a handle: on the heap, as NCCL keeps its address and may write it after the call has
/// returned, even if the call fails. It is leaked unless it is freed explicitly.
pub(crate) struct OutParam<T> {
    out: *mut *mut T,
    /// The library's at the start of the call: a program may load CUDA afterwards.
    memory_space: MemorySpace,
}

impl<T> OutParam<T> {
    pub(crate) fn new(library: &Library) -> Self {
        Self { out: Box::into_raw(Box::new(ptr::null_mut())), memory_space: library.memory_space() }
    }

    /// Returns the memory space of the library at the start of the call.
    pub(crate) fn memory_space(&self) -> MemorySpace {
        self.memory_space
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut *mut T {
        self.out
    }

    /// Returns the handle, null as long as NCCL has not written it.
    pub(crate) fn get(&self) -> *mut T {
        // SAFETY: allocated in `new`, and freed only by `free`, whose caller does not use it any more. NCCL writes it
        // only during calls on the communicator, which are made one at a time.
        unsafe { self.out.read_volatile() }
    }

    /// Frees the memory after the creation of a communicator, if NCCL does not use it any more: after a success, or if the
    /// CPU implementation failed, which writes the handle during the call only.
    ///
    /// # Safety
    /// `created` is the result of the creation including the wait for it, and `self` is not used any more.
    pub(crate) unsafe fn free_after<R>(&self, created: &Result<R>) {
        if created.is_ok() || self.memory_space == MemorySpace::Host {
            // SAFETY: as above.
            unsafe { self.free() };
        }
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// NCCL has written the handle or never will, and `self` is not used any more.
    pub(crate) unsafe fn free(&self) {
        // SAFETY: allocated in `new`; the caller guarantees that nothing uses it any more.
        drop(unsafe { Box::from_raw(self.out) });
    }
}

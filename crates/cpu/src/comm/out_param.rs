//! An out-parameter that is written when the work has ended, perhaps by another thread.
#![allow(unsafe_code)]

#[derive(Debug)]
pub(crate) struct OutParam<T>(*mut T);

// SAFETY: the memory is not bound to a thread, and by the contract of `new` nothing else accesses it meanwhile. The value
// is for the caller, who may be another thread, so it is a handle.
unsafe impl<T> Send for OutParam<T> {}
// SAFETY: as for Send: an operation is run by one thread at a time.
unsafe impl<T> Sync for OutParam<T> {}

impl<T> OutParam<T> {
    /// # Safety
    ///
    /// The memory can be written until the call, or the group, that this belongs to has ended; if the communicator is
    /// nonblocking, until it is no longer in progress.
    pub(crate) unsafe fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    #[cfg(test)]
    pub(crate) fn for_test(value: &mut T) -> Self {
        // SAFETY: tests end the group before they access the value again.
        unsafe { Self::new(value) }
    }

    pub(crate) fn write(&self, value: T) {
        // SAFETY: the caller of `new` guarantees it.
        unsafe { self.0.write(value) }
    }
}

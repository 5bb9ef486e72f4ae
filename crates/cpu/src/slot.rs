//! Where a result goes that a caller waits for: written when the work has ended, perhaps by another thread.
#![allow(unsafe_code)]

#[derive(Debug)]
pub(crate) struct Slot<T>(*mut T);

// SAFETY: the place is no thread's: by the contract of `new` nobody else uses it meanwhile. What goes there is for
// the caller, who may be another thread, so it is a handle.
unsafe impl<T> Send for Slot<T> {}

impl<T> Slot<T> {
    /// # Safety
    ///
    /// The place can be written until the call, or the group, that this belongs to has ended: where it does not
    /// block, until the communicator says that it has.
    pub(crate) unsafe fn new(place: *mut T) -> Self {
        Self(place)
    }

    #[cfg(test)]
    pub(crate) fn for_test(place: &mut T) -> Self {
        // SAFETY: tests end the group before they look at the place again.
        unsafe { Self::new(place) }
    }

    pub(crate) fn write(&self, value: T) {
        // SAFETY: as `new`'s caller vouched.
        unsafe { self.0.write(value) }
    }
}

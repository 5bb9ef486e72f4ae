//! Memory that NCCL knows, until its owner ends that.

use std::ffi::c_void;
use std::mem;
use std::ptr;
use std::sync::Arc;

use crate::Result;
use crate::buffer::Allocation;
use crate::communicator::{Handle, Object, Owner};

/// The method that ends a registration or a window, for errors.
pub(super) const DEREGISTER: &str = "deregister";

/// The registration of memory; its drop ends it.
pub(super) struct Registered<O: Owner> {
    pub(super) owner: O,
    /// The handle; null if NCCL does not use the registration, and once it has ended.
    pub(super) handle: *mut c_void,
    /// The memory; `None` if the caller of [`register_raw`](crate::Communicator::register_raw) keeps it, and once it is
    /// deregistered.
    pub(super) memory: Option<Arc<Allocation>>,
}

impl<O: Owner> Registered<O> {
    pub(super) fn into_owner<P: Owner>(mut self, owner: P) -> Registered<P> {
        let (handle, memory) = (mem::replace(&mut self.handle, ptr::null_mut()), self.memory.take());
        Registered { owner, handle, memory }
    }

    pub(super) fn end(&mut self) -> Result<()> {
        let (handle, memory) = (mem::replace(&mut self.handle, ptr::null_mut()), self.memory.take());
        if handle.is_null() {
            return Ok(());
        }
        Object::new(Handle::Registration(handle), memory).end(&self.owner, DEREGISTER)
    }
}

impl<O: Owner> Drop for Registered<O> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

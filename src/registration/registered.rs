//! Memory that NCCL knows, until its owner ends that.
#![allow(unsafe_code)] // Calls C.

use std::ffi::c_void;
use std::mem;
use std::ptr;
use std::sync::Arc;

use crate::Result;
use crate::backend::call;
use crate::buffer::Allocation;
use crate::communicator::{Owner, Shared};

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
        let (owner, shared) = (&self.owner, self.owner.shared());
        let idle = memory.as_ref().map_or(Ok(()), |memory| memory.check_idle(DEREGISTER));
        let ended = idle.and_then(|()| {
            // SAFETY: a registration of this communicator, ended only here, which `run_end` makes sure is live. No work uses
            // the memory: it is idle, or the caller of `register_raw` guarantees it.
            owner.run_end(DEREGISTER, || unsafe {
                call!(shared.library, ncclCommDeregister(shared.raw, handle))
            })
        });
        ok_if_freed(shared, ended).inspect_err(|_| memory.into_iter().for_each(leak))
    }
}

impl<O: Owner> Drop for Registered<O> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Treats a communicator that has been freed on host memory as success: its registrations and windows ended with it.
pub(super) fn ok_if_freed<R>(shared: &Shared, ended: Result<R>) -> Result<()> {
    match ended {
        Err(crate::Error::Aborted { .. }) if shared.is_freed() => Ok(()),
        ended => ended.map(drop),
    }
}

/// Leaks memory that could not be deregistered: NCCL may use it until the communicator ends.
pub(super) fn leak(memory: Arc<Allocation>) {
    mem::forget(memory);
}

//! This rank's part of a window, until its owner ends it.

use std::ptr;
use std::sync::Arc;

use super::registered::DEREGISTER;
use crate::buffer::Allocation;
use crate::communicator::{Handle, Object, OutParam, Owner, incomplete_window};
use crate::operation::Target;
use crate::{Result, sys};

/// A window with its owner; its drop ends this rank's part.
pub(super) struct RegisteredWindow<O: Owner> {
    pub(super) owner: O,
    pub(super) length: usize,
    /// `None` once it has ended.
    pub(super) part: Option<Part>,
}

/// The part of this rank, as NCCL knows it.
pub(super) struct Part {
    /// Written at the end of the group; freed once that is known to be over.
    pub(super) handle: OutParam<sys::ncclWindow_vidmem>,
    pub(super) memory: Arc<Allocation>,
}

impl<O: Owner> RegisteredWindow<O> {
    /// Gives the window another owner, if it is complete.
    pub(super) fn into_owner<P: Owner>(
        mut self,
        owner: P,
        call: &'static str,
    ) -> Result<RegisteredWindow<P>> {
        if self.raw().is_null() && self.owner.is_incomplete() {
            return Err(incomplete_window(call));
        }
        Ok(RegisteredWindow { owner, length: self.length, part: self.part.take() })
    }

    /// Returns the handle; null if the window is not active.
    pub(super) fn raw(&self) -> sys::ncclWindow_t {
        self.part.as_ref().map_or(ptr::null_mut(), |part| part.handle.get())
    }

    pub(super) fn target(&self, offset: usize) -> Target<'_> {
        Target { shared: self.owner.shared(), window: self.raw(), length: self.length, offset }
    }

    pub(super) fn end(&mut self) -> Result<()> {
        let Some(Part { handle, memory }) = self.part.take() else { return Ok(()) };
        Object::new(Handle::Window(handle), Some(memory)).end(&self.owner, DEREGISTER)
    }
}

impl<O: Owner> Drop for RegisteredWindow<O> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

//! This rank's part of a window, until its owner ends it.
#![allow(unsafe_code)] // Calls C.

use std::ptr;
use std::sync::Arc;

use super::registered::{DEREGISTER, leak, ok_if_freed};
use crate::backend::call;
use crate::buffer::Allocation;
use crate::communicator::{OutParam, Owner};
use crate::operation::Target;
use crate::{Error, Result, sys};

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
        if self.raw().is_null() {
            self.check_complete(call)?;
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
        let window = self.raw();
        let Some(Part { handle, memory }) = self.part.take() else { return Ok(()) };
        let (owner, shared) = (&self.owner, self.owner.shared());
        let ended = if window.is_null() {
            self.check_complete(DEREGISTER)
        } else {
            memory.check_idle(DEREGISTER).and_then(|()| {
                // SAFETY: a window of this communicator, ended only here, which `run_end` makes sure is live; no work uses the
                // memory.
                let ended = owner.run_end(DEREGISTER, || unsafe {
                    call!(shared.library, ncclCommWindowDeregister(shared.raw, window))
                });
                ok_if_freed(shared, ended)
            })
        };
        match ended {
            Ok(()) => {
                memory.close_window();
                // SAFETY: the call, or the group, has succeeded, so NCCL does not write the handle any more.
                unsafe { handle.free() };
            }
            Err(_) => leak(memory),
        }
        ended
    }

    /// Returns an error if NCCL may not have written the handle yet.
    fn check_complete(&self, call: &'static str) -> Result<()> {
        if self.owner.is_incomplete() {
            let problem = "the group that registers the window has failed or has not ended";
            return Err(Error::usage(call, problem));
        }
        Ok(())
    }
}

impl<O: Owner> Drop for RegisteredWindow<O> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::communicator::Communicator;
use super::out_param::OutParam;
use super::shared::{Origin, Shared};
use crate::backend::Library;
use crate::buffer::MemorySpace;
use crate::error::{Error, Result};
use crate::sys;

/// A communicator that a group creates at its end; see [`CommunicatorBuilder::init_in`](crate::communicator::CommunicatorBuilder::init_in).
pub struct PendingCommunicator {
    call: &'static str,
    handle: Rc<PendingHandle>,
    size: usize,
    rank: usize,
    timeout: Option<Duration>,
}

/// The out-parameter for the handle, with the data to which NCCL keeps pointers. The group shares it, so it lives until
/// the group has ended. Unless the handle was taken out, the last owner ends the communicator.
pub(crate) struct PendingHandle {
    library: Arc<Library>,
    /// Freed once the communicator is known to be complete or ended: 2.14.3 uses it until then.
    slot: OutParam<sys::ncclComm>,
    state: Cell<PendingState>,
    origin: Origin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PendingState {
    GroupOpen,
    Created,
    Taken,
    /// The group has failed. NCCL leaves the handle as it is, of a communicator that was never complete.
    Failed,
}

impl PendingHandle {
    pub(crate) fn resolve(&self, has_failed: bool) {
        self.state.set(if has_failed { PendingState::Failed } else { PendingState::Created });
    }
}

impl PendingCommunicator {
    pub(super) fn new(
        call: &'static str,
        library: &Arc<Library>,
        origin: Origin,
        (size, rank): (usize, usize),
        timeout: Option<Duration>,
    ) -> Self {
        let handle = Rc::new(PendingHandle {
            library: Arc::clone(library),
            slot: OutParam::new(library),
            state: Cell::new(PendingState::GroupOpen),
            origin,
        });
        Self { call, handle, size, rank, timeout }
    }

    /// Returns the place for the handle, which is freed once the group has ended, and NCCL is known to be done with it.
    pub(super) fn out(&self) -> *mut sys::ncclComm_t {
        self.handle.slot.as_mut_ptr()
    }

    pub(super) fn handle(&self) -> Rc<PendingHandle> {
        Rc::clone(&self.handle)
    }

    /// Returns the communicator, after the end of the group.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] before the end of the group, or if it failed; the errors of
    /// [`CommunicatorBuilder::init`](crate::communicator::CommunicatorBuilder::init).
    pub fn finish(self) -> Result<Communicator> {
        match self.handle.state.get() {
            PendingState::GroupOpen => {
                Err(Error::usage("finish", "the group that creates the communicator has not ended"))
            }
            PendingState::Failed | PendingState::Taken => {
                Err(Error::usage("finish", "the group that was to create the communicator failed"))
            }
            PendingState::Created => {
                let PendingHandle { library, slot, state, origin } = &*self.handle;
                state.set(PendingState::Taken);
                let shared = Shared::new(library, slot.get(), origin.clone());
                // For the error of a rank that never joins.
                shared.membership(self.size, self.rank);
                // SAFETY: the group has created the handle, and it is taken out here.
                let created = unsafe { Communicator::from_shared(self.call, shared, self.timeout, None) };
                // SAFETY: a slot whose handle was taken out is not used any more.
                unsafe { slot.free_after(&created) };
                created
            }
        }
    }
}

impl Drop for PendingHandle {
    fn drop(&mut self) {
        let state = self.state.get();
        if state == PendingState::Taken {
            return;
        }
        let (library, raw, origin) = (&self.library, self.slot.get(), mem::take(&mut self.origin));
        let ended = if state == PendingState::Created && !raw.is_null() {
            // SAFETY: the group has created the handle, and it was not taken out.
            unsafe { Shared::new(library, raw, origin).abort() }
        } else {
            // An abort of what was never complete would free nothing, or crash (2.14.3). NCCL keeps it, and the name.
            if self.slot.memory_space() == MemorySpace::Device {
                mem::forget(origin.name);
            }
            Ok(())
        };
        // SAFETY: the group is over, and nothing else has the slot.
        unsafe { self.slot.free_after(&ended) };
    }
}

impl fmt::Debug for PendingCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCommunicator").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl fmt::Debug for PendingHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingHandle").field("state", &self.state.get()).finish_non_exhaustive()
    }
}

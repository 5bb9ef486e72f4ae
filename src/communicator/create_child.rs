#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::handle::Communicator;
use super::out_param::OutParam;
use super::state::State;
use crate::backend::{Library, call};
use crate::group::open::check_no_open_group;
use crate::{Config, MemorySpace, Result, ResultCode, sys};

impl Communicator {
    /// Creates a communicator from this one with `create`, after entering NCCL with `enter`. Returns `None` if NCCL
    /// writes no handle.
    pub(super) fn create_child(
        &self,
        call: &'static str,
        config: &Config,
        enter: fn(&State, &'static str) -> Result<()>,
        create: impl FnOnce(*mut sys::ncclComm_t, *mut sys::ncclConfig_t) -> Result<ResultCode>,
    ) -> Result<Option<Self>> {
        check_no_open_group(call)?;
        let library = self.library();
        // Without options, NCCL uses those of this communicator.
        let inherits = config.is_default();
        let config = config.clone().inherit_timeout(self.timeout);
        let mut raw_config = config.to_raw(call, library.version, &library.backend.to_string())?;
        let name = raw_config.name().or_else(|| self.shared.name.clone());
        let raw_config = if inherits { ptr::null_mut() } else { raw_config.as_mut_ptr() };
        let out = OutParam::new();
        // A communicator that was revoked after it failed can have children again.
        let enter = if self.is_stopped.load(Relaxed) { State::enter_for_query } else { enter };
        enter(&self.shared.state, call)?;
        // A nonblocking communicator returns success at once, and writes the handle by the time its state is success
        // (measured on 2.28.3 and 2.32.3): so wait, whatever the call returned.
        let written = create(out.as_mut_ptr(), raw_config).and_then(|_| self.wait(call));
        let child = match written {
            Ok(()) => {
                let (raw, timeout, parent) = (out.get(), config.timeout_duration(), Some(&self.shared.state));
                // SAFETY: NCCL has just created the handle, if there is one, and nothing else has it.
                let adopt = || unsafe { Self::adopt_child(call, library, raw, timeout, name, parent) };
                (!raw.is_null()).then(adopt).transpose()
            }
            Err(error) => {
                abandon(library, out.get(), name);
                Err(error)
            }
        };
        if child.is_ok() {
            // SAFETY: this communicator and the child are complete, so NCCL does not write any more.
            unsafe { out.free() };
        } // Otherwise NCCL may, so the slot is leaked.
        self.leave();
        child
    }
}

/// Gives up a handle that NCCL has written although its creation failed; null if it has not.
///
/// NCCL cannot free it: until a child is complete, its parent points to its abort flag, and writes it when it is aborted
/// itself. So it is leaked, with the name that NCCL was given.
fn abandon(library: &Library, raw: sys::ncclComm_t, name: Option<Arc<CStr>>) {
    match library.memory_space() {
        MemorySpace::Device => std::mem::forget(name),
        MemorySpace::Host if raw.is_null() => {}
        MemorySpace::Host => {
            // SAFETY: a handle that nothing else has; the CPU implementation's parents do not point to their children.
            let _ = unsafe { call!(library, ncclCommAbort(raw)) };
        }
    }
}

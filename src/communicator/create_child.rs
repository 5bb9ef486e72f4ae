#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::communicator::Communicator;
use super::inside::Inside;
use super::out_param::OutParam;
use super::shared::Shared;
use super::state::Purpose;
use crate::backend::{Library, call};
use crate::buffer::MemorySpace;
use crate::config::Config;
use crate::error::{Result, ResultCode};
use crate::sys;

impl Communicator {
    /// Creates a communicator of a `color`, if there are several, from this one with `create`, after entering NCCL for
    /// `purpose`. Returns `None` if NCCL writes no handle.
    pub(super) fn create_child(
        &self,
        call: &'static str,
        config: &Config,
        color: i32,
        purpose: Purpose,
        create: impl FnOnce(*mut sys::ncclComm_t, *mut sys::ncclConfig_t) -> Result<ResultCode>,
    ) -> Result<Option<Self>> {
        let library = self.library();
        // Without options, NCCL uses those of this communicator.
        let inherits = config.is_default();
        let config = config.clone().inherit_timeout(self.timeout);
        let mut raw_config = config.to_raw(call, library.version, &library.backend.to_string())?;
        let raw_pointer = if inherits { ptr::null_mut() } else { raw_config.as_mut_ptr() };
        // A communicator that was revoked after it failed can have children again.
        let purpose = if self.is_stopped.load(Relaxed) { Purpose::Query } else { purpose };
        let _inside = Inside::ungrouped(&self.shared, call, purpose)?;
        let out = OutParam::new(library);
        let called = create(out.as_mut_ptr(), raw_pointer);
        let origin = self.shared.origin_of_child(&config, &raw_config, color);
        // A nonblocking communicator returns success at once, and writes the handle by the time its state is success
        // (measured on 2.28.3 and 2.32.3): so wait, whatever the call returned.
        let child = match called.and_then(|_| self.wait_within(call, None)) {
            Ok(()) if out.get().is_null() => Ok(None),
            Ok(()) => {
                let shared = Shared::new(library, out.get(), origin);
                let (timeout, parent) = (config.timeout_duration(), Some(&self.shared.state));
                // SAFETY: NCCL has just created the handle, and nothing else has it.
                unsafe { Self::from_shared(call, shared, timeout, parent) }.map(Some)
            }
            Err(error) => {
                abandon(library, &out, origin.name);
                Err(error)
            }
        };
        // SAFETY: the last use. NCCL does not write it any more: this communicator and the child are complete, or, on host
        // memory, the call has ended or is aborted.
        unsafe { out.free_after(&child) };
        child
    }
}

/// Gives up a handle that NCCL may have written although its creation failed.
///
/// NCCL cannot free it: until a child is complete, its parent points to its abort flag, and writes it when it is aborted
/// itself. So it is leaked, with the name that NCCL was given.
fn abandon(library: &Library, out: &OutParam<sys::ncclComm>, name: Option<Arc<CStr>>) {
    let raw = out.get();
    match out.memory_space() {
        MemorySpace::Device => mem::forget(name),
        MemorySpace::Host if raw.is_null() => {}
        MemorySpace::Host => {
            // SAFETY: a handle that nothing else has; the CPU implementation's parents do not point to their children.
            let _ = unsafe { call!(library, ncclCommAbort(raw)) };
        }
    }
}

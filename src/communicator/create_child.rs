#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use super::handle::Communicator;
use super::out_param::OutParam;
use super::state::State;
use crate::backend::call;
use crate::group::open::check_no_open_group;
use crate::{Config, Result, ResultCode, sys};

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
        let created = create(out.as_mut_ptr(), raw_config);
        // A nonblocking communicator returns success at once, and writes the handle by the time its state is success
        // (measured on 2.28.3 and 2.32.3): so wait, whatever the call returned.
        let written = created.and_then(|_| self.wait(call)).inspect_err(|_| {
            // Nothing owns a handle that was created before the failure. NCCL may still write, so `out` is leaked.
            let raw = out.get();
            if !raw.is_null() {
                // SAFETY: a handle that nothing else has.
                let _ = unsafe { call!(library, ncclCommAbort(raw)) };
            }
        });
        let child = written.and_then(|()| {
            let raw = out.get();
            // SAFETY: the call is complete, so NCCL does not write any more.
            unsafe { out.free() };
            if raw.is_null() {
                return Ok(None);
            }
            let (timeout, parent) = (config.timeout_duration(), Some(&self.shared.state));
            // SAFETY: NCCL has just created the handle, and nothing else has it.
            unsafe { Self::adopt_child(call, library, raw, ResultCode::IN_PROGRESS, timeout, name, parent) }
                .map(Some)
        });
        self.leave();
        child
    }
}

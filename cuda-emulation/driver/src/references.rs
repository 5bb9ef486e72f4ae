//! References to memory that is freed: those of NCCL's registrations, of other processes, and of graphs.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUresult::*;

use crate::allocation::Allocation;
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::report::say;
use cuda_common::FreeCheck;
use cuda_common::finding::Finding;

static CHECKS: Mutex<Vec<FreeCheck>> = Mutex::new(Vec::new());

pub(crate) fn on_free(check: FreeCheck) {
    CHECKS.lock().unwrap_or_else(PoisonError::into_inner).push(check);
}

impl Driver {
    /// Reports references to memory that is about to be freed.
    ///
    /// # Errors
    ///
    /// In strict mode, another process or an NCCL registration refers to it. A graph does not prohibit the free: its next launch
    /// fails.
    pub(crate) fn check_free(&self, function: &'static CStr, address: u64) -> Result<()> {
        let state = self.lock();
        let Some(allocation) = state.allocations.at(address).map(Arc::clone) else { return Ok(()) };
        let is_it = |used: &Arc<Allocation>| Arc::ptr_eq(used, &allocation);
        let is_in_graph = state.execs.values().any(|exec| exec.memory().any(is_it));
        drop(state);
        let frees = || format!("{} frees {}", function.to_string_lossy(), allocation.description());
        if is_in_graph {
            let text = format!("{}, while a graph that uses it can still be launched", frees());
            say(self.config, Finding::FreeUnderReference, 1, &text, self.config.lists_leaks);
        }
        if allocation.is_open_elsewhere() {
            let text = format!(
                "{}, while another process has it open: cudaIpcCloseMemHandle has to come before",
                frees()
            );
            say(self.config, Finding::FreeUnderReference, 1, &text, true);
            let is_refused = self.config.lists_leaks && !self.config.ignored.has(Finding::FreeUnderReference);
            ensure(!is_refused, CUDA_ERROR_INVALID_VALUE)?;
        }
        check_range(function, address, allocation.length)
    }
}

/// Calls the checks of `Interface::on_free`, which may call CUDA. The driver's lock must not be held.
pub(crate) fn check_range(function: &'static CStr, address: u64, length: usize) -> Result<()> {
    let checks = CHECKS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // SAFETY: the caller of `Interface::on_free` promises that they can be called.
    let is_refused = |check: &FreeCheck| unsafe { check(function.as_ptr(), address, length) } != 0;
    // Each of them reports.
    let refused = checks.iter().filter(|check| is_refused(check)).count();
    ensure(refused == 0, CUDA_ERROR_INVALID_VALUE)
}

//! References to memory that is freed: those of NCCL's registrations, of other processes, and of graphs.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use cuda_common::FreeCheck;
use cuda_common::finding::Finding;
use cudarc::driver::sys::CUresult;

use crate::allocation::Allocation;
use crate::driver::{Action, Driver, Exec, State};
use crate::error::Result;

static CHECKS: Mutex<Vec<FreeCheck>> = Mutex::new(Vec::new());

/// Adds a check.
pub(crate) fn on_free(check: FreeCheck) {
    CHECKS.lock().unwrap_or_else(PoisonError::into_inner).push(check);
}

impl Exec {
    /// The memory that the operations use.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        let requests = self.graph.nodes.iter().filter_map(|node| match &node.action {
            Action::Execute(request) => Some(request),
            Action::Record(_) | Action::Wait(_) => None,
        });
        requests.flat_map(|request| &request.accesses).flat_map(|access| access.allocations())
    }
}

impl State {
    /// Returns whether a graph that can be launched uses an allocation.
    fn is_in_graph(&self, allocation: &Arc<Allocation>) -> bool {
        self.execs.values().any(|exec| exec.memory().any(|used| Arc::ptr_eq(used, allocation)))
    }
}

impl Driver {
    /// Reports what refers to an allocation that a function of the program is about to free.
    ///
    /// # Errors
    /// A registration or another process refers to it, in strict mode. A graph is none: only its launch is an error then.
    pub(crate) fn check_free(&self, function: &'static CStr, address: u64) -> Result<()> {
        let state = self.lock();
        let Some(allocation) = state.allocations.at(address).map(Arc::clone) else { return Ok(()) };
        let is_in_graph = state.is_in_graph(&allocation);
        drop(state);
        let frees = || format!("{} frees {}", function.to_string_lossy(), allocation.description());
        if is_in_graph {
            let text = format!("{}, while a graph that uses it can still be launched", frees());
            self.say(Finding::FreeUnderReference, 1, &text, self.config.lists_leaks);
        }
        if allocation.is_open_elsewhere() {
            let text = format!(
                "{}, while another process has it open: cudaIpcCloseMemHandle has to come before",
                frees()
            );
            self.say(Finding::FreeUnderReference, 1, &text, true);
            if self.config.lists_leaks && !self.config.ignored.has(Finding::FreeUnderReference) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
        check_range(function, address, allocation.length)
    }
}

/// Calls the checks of `Interface::on_free`. The driver's lock has to be free: they may call CUDA.
pub(crate) fn check_range(function: &'static CStr, address: u64, length: usize) -> Result<()> {
    let checks = CHECKS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // SAFETY: the caller of `Interface::on_free` promises that they can be called.
    let is_refused = |check: &FreeCheck| unsafe { check(function.as_ptr(), address, length) } != 0;
    // Each of them reports.
    let refused = checks.iter().filter(|check| is_refused(check)).count();
    if refused == 0 { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) }
}

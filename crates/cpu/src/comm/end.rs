//! The end of the process: what is left then.
#![allow(unsafe_code)]

use std::panic::catch_unwind;
use std::sync::Once;

use crate::comm::handle;
use crate::diag::report;
use crate::shm::mem_alloc;

static WATCHED: Once = Once::new();

/// Lets what is left be reported when the process exits by `exit` or from `main`.
pub(crate) fn watch() {
    WATCHED.call_once(report::begin);
}

/// Called after all functions of `atexit` and the destructors of static objects, which may yet destroy what is left.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    if WATCHED.is_completed() {
        // It may not unwind, and what a report needs may be gone by now.
        let _ = catch_unwind(|| {
            handle::report_end();
            mem_alloc::report_end();
            report::end();
        });
    }
}

//! The end of the process, by `exit` or from `main`: what is left then.
#![allow(unsafe_code)]

use std::panic::catch_unwind;

use crate::comm::handle;
use crate::diag::report;
use crate::shm::mem_alloc;

/// Called after all functions of `atexit` and the destructors of static objects, which may yet destroy what is left.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    if report::has_begun() {
        // It may not unwind, and what a report needs may be gone by now.
        let _ = catch_unwind(|| {
            handle::report_end();
            mem_alloc::report_end();
            report::end();
        });
    }
}

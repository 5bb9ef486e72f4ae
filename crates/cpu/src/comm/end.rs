//! The end of the process, by `exit`, `quick_exit` or from `main`: what is left then.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::ptr;

use crate::comm::handle;
use crate::diag::fault_signal;
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

/// Reports what is left at a `quick_exit`, too, if the C library has it.
pub(super) fn watch_quick_exit() {
    type Register = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void) -> c_int;
    extern "C" fn end_quickly(_: *mut c_void) {
        end();
    }
    // SAFETY: a C string; the function is looked up in what is loaded.
    let register = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_at_quick_exit".as_ptr()) };
    if !register.is_null() {
        // Functions of a library that is unloaded would stay registered.
        fault_signal::stay_loaded();
        // SAFETY: the function of the C++ ABI has this signature.
        let register = unsafe { std::mem::transmute::<*mut c_void, Register>(register) };
        // SAFETY: a function that may be called at any time, and no library with which it is forgotten.
        unsafe { register(end_quickly, ptr::null_mut()) };
    }
}

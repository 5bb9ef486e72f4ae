//! Functions that the C library calls when the process exits.
#![allow(unsafe_code)]

/// Lets `function` be called when the process exits by `exit` or from `main`.
pub(crate) fn call_at_exit(function: extern "C" fn()) {
    // SAFETY: a function that takes and returns nothing, and stays loaded: the C library calls what a library has
    // registered before it is unloaded. It fails only if there is no memory.
    let _ = unsafe { libc::atexit(function) };
}

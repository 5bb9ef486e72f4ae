//! Forked children: a child has a copy of its parent's communicators, but is not a rank of any of them.
//!
//! Other ranks would mistake its calls for its parent's calls. A child can create its own communicators.
#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use crate::diag::error::Error;

static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// The process ids of this process and of the process that forked it.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks that led to this process since [`watch`] was called.
#[inline]
pub(crate) fn generation() -> usize {
    GENERATION.load(Relaxed)
}

/// Starts counting forks made by the C library's `fork`.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        PROCESS.store(std::process::id(), Relaxed);
        // SAFETY: the handler only does what a forked child may do: it calls getpid and writes atomics. It stays loaded, because the C
        // library removes the handlers of an unloaded library. It fails only if there is no memory.
        unsafe { libc::pthread_atfork(None, None, Some(count)) };
    });
}

extern "C" fn count() {
    PARENT.store(PROCESS.swap(std::process::id(), Relaxed), Relaxed);
    GENERATION.fetch_add(1, Relaxed);
}

/// Returns the error for using an inherited `what` in a forked child.
pub(crate) fn inherited(what: &str) -> Error {
    Error::usage(format!(
        "{what} was made before process {} forked this process, {}, which has no rank in it: a forked child can make \
         communicators of its own",
        PARENT.load(Relaxed),
        PROCESS.load(Relaxed)
    ))
}

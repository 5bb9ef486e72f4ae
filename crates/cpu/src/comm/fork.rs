//! Forked children: a child has a copy of its parent's communicators, but it is none of their ranks.
//!
//! Other ranks would take its calls for its parent's. A child can make communicators of its own.
#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use crate::diag::error::Error;

static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// The process ids of this process and of the one that forked it.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks that led to this process since [`watch`].
#[inline]
pub(crate) fn generation() -> usize {
    GENERATION.load(Relaxed)
}

/// Counts forks from now on, those by the C library's `fork`.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        PROCESS.store(std::process::id(), Relaxed);
        // SAFETY: the handler does what a forked child may do: it calls getpid and writes atomics. It stays loaded, as the
        // C library forgets handlers of a library that is unloaded. It fails only if there is no memory.
        unsafe { libc::pthread_atfork(None, None, Some(count)) };
    });
}

extern "C" fn count() {
    PARENT.store(PROCESS.swap(std::process::id(), Relaxed), Relaxed);
    GENERATION.fetch_add(1, Relaxed);
}

/// Returns the error of using `what` in a child that inherited it.
pub(crate) fn inherited(what: &str) -> Error {
    Error::usage(format!(
        "{what} was made before process {} forked this process, {}, which has no rank in it: a forked child can make \
         communicators of its own",
        PARENT.load(Relaxed),
        PROCESS.load(Relaxed)
    ))
}

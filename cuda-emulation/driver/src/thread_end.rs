//! The end of threads.
//!
//! A value with a destructor is gone when functions of `atexit`, destructors of other values and those of pthread keys run, and
//! these may call CUDA. So the state of threads has no destructor. A pthread key, whose destructor runs after those of all
//! other thread-local values, frees what the state refers to. It does not run when the process exits.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use crate::context;

/// The round of destructors in which the state is freed. POSIX guarantees four rounds; destructors of other keys run in the
/// first, unless they set a key again. One less than four, as the first one of a thread that comes to CUDA late is not counted.
const LAST_ROUND: usize = 3;

/// The key, whose value is the number of the next round.
fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: valid for a write; the function stays loaded, as this library is never unloaded.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(end)) } == 0).then_some(key)
    })
}

/// Frees the state of the calling thread when the thread ends. If the system has no key left, it is never freed.
pub(crate) fn watch() {
    set_round(1);
}

fn set_round(round: usize) {
    if let Some(key) = key() {
        // SAFETY: a key that is never deleted. The value is a number that nothing follows.
        unsafe { libc::pthread_setspecific(key, ptr::without_provenance::<c_void>(round)) };
    }
}

unsafe extern "C" fn end(round: *mut c_void) {
    let round = round.addr();
    if round < LAST_ROUND {
        set_round(round + 1);
    } else {
        context::end_thread();
    }
}

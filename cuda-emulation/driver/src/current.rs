//! The state of the calling thread: its contexts, and the calls that it is permitted to make.
//!
//! A value with a destructor no longer exists when `atexit` functions, destructors of other thread-local values and destructors
//! of pthread keys run, and these may call CUDA. So the state has no destructor. Instead, a pthread key frees the data of the
//! state: the key's destructor runs after the destructors of all other thread-local values. It does not run when the process
//! exits.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cudarc::driver::sys::CUresult::*;

use crate::error::{Result, ensure};
use crate::handle::ContextId;

/// The potentially unsafe calls that captures prohibit, as in `cuThreadExchangeStreamCaptureMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    pub(crate) fn of(number: u32) -> Option<Self> {
        [Self::Global, Self::ThreadLocal, Self::Relaxed].into_iter().find(|mode| *mode as u32 == number)
    }
}

struct Thread {
    number: Cell<u64>,
    contexts: RefCell<Vec<ContextId>>,
    capture_mode: Cell<Mode>,
    executes_function: Cell<bool>,
    is_watched: Cell<bool>,
}

thread_local! {
    static THREAD: ManuallyDrop<Thread> = const { ManuallyDrop::new(Thread {
        number: Cell::new(0),
        contexts: RefCell::new(Vec::new()),
        capture_mode: Cell::new(Mode::Global),
        executes_function: Cell::new(false),
        is_watched: Cell::new(false),
    }) };
}

const _: () = assert!(!std::mem::needs_drop::<ManuallyDrop<Thread>>(), "it is used after destructors");

static AT_END: OnceLock<fn(u64)> = OnceLock::new();

/// Registers a function that is called with the number of each ending thread that has a number.
pub(crate) fn at_thread_end(function: fn(u64)) {
    AT_END.get_or_init(|| function);
}

/// The round of key destructors in which the state is freed. POSIX guarantees four rounds. Destructors of other keys run in the
/// first round, unless they set a key again. If a thread first calls CUDA in the first round, counting begins in the second one, so
/// the fourth round is number three.
const LAST_ROUND: usize = 3;

/// Returns the key. Its value in each thread is the number of the next round.
fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: valid for a write; the function stays loaded, as this library is never unloaded.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(end)) } == 0).then_some(key)
    })
}

/// Sets the number of the thread's next round of key destructors. If no key is left, the thread's state is never freed.
fn set_round(round: usize) {
    if let Some(key) = key() {
        // SAFETY: a key that is never deleted. The value is a number that is never dereferenced.
        unsafe { libc::pthread_setspecific(key, ptr::without_provenance::<c_void>(round)) };
    }
}

/// Frees the state of the calling thread in the last round. Later calls on the thread begin with a new state.
unsafe extern "C" fn end(round: *mut c_void) {
    let round = round.addr();
    if round < LAST_ROUND {
        return set_round(round + 1);
    }
    let number = THREAD.with(|thread| {
        thread.is_watched.set(false);
        drop(thread.contexts.take());
        thread.number.take()
    });
    if let Some(at_end) = AT_END.get().filter(|_| number != 0) {
        at_end(number);
    }
}

/// Uses state that must be freed when the thread ends.
fn with_watched<T>(action: impl FnOnce(&Thread) -> T) -> T {
    THREAD.with(|thread| {
        if !thread.is_watched.replace(true) {
            set_round(1);
        }
        action(thread)
    })
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Current;

impl Current {
    fn contexts<T>(action: impl FnOnce(&mut Vec<ContextId>) -> T) -> T {
        with_watched(|thread| action(&mut thread.contexts.borrow_mut()))
    }

    pub(crate) fn get() -> Option<ContextId> {
        THREAD.with(|thread| thread.contexts.borrow().last().copied())
    }

    pub(crate) fn require() -> Result<ContextId> {
        Self::get().ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    pub(crate) fn set(context: Option<ContextId>) {
        Self::contexts(|contexts| {
            contexts.pop();
            contexts.extend(context);
        });
    }

    pub(crate) fn push(context: ContextId) {
        Self::contexts(|contexts| contexts.push(context));
    }

    pub(crate) fn pop() -> Result<ContextId> {
        Self::contexts(Vec::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    pub(crate) fn capture_mode() -> Mode {
        THREAD.with(|thread| thread.capture_mode.get())
    }

    pub(crate) fn exchange_capture_mode(mode: Mode) -> Mode {
        THREAD.with(|thread| thread.capture_mode.replace(mode))
    }

    pub(crate) fn execute_function(function: impl FnOnce()) {
        let set = |executes| THREAD.with(|thread| thread.executes_function.set(executes));
        set(true);
        function();
        set(false);
    }

    /// Checks that the calling thread executes no host function of a stream, which must not wait for its own stream.
    pub(crate) fn check_is_no_function() -> Result<()> {
        ensure(!THREAD.with(|thread| thread.executes_function.get()), CUDA_ERROR_NOT_PERMITTED)
    }

    pub(crate) fn thread() -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        with_watched(|thread| {
            if thread.number.get() == 0 {
                thread.number.set(LAST.fetch_add(1, Relaxed) + 1);
            }
            thread.number.get()
        })
    }
}

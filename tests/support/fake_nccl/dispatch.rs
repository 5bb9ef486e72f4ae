//! The way of a C call to the fake that its thread is attached to.

use std::cell::RefCell;
use std::ffi::c_char;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::arguments::{Argument, call_text};
use super::codes::INVALID_USAGE;
use super::model::State;

/// The state of a fake, which its clones and threads share.
pub(super) type SharedState = Arc<Mutex<State>>;

/// Functions that the log leaves out: the facade calls them for the text of every error.
const ERROR_TEXTS: [&str; 2] = ["ncclGetErrorString", "ncclGetLastError"];

thread_local! {
    /// The fake that this thread's calls go to.
    static CURRENT: RefCell<Option<SharedState>> = const { RefCell::new(None) };
}

/// Directs the calls of the current thread to a fake.
pub(super) fn attach(shared: &SharedState) {
    CURRENT.set(Some(Arc::clone(shared)));
}

pub(super) fn lock(shared: &SharedState) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives every call of a C function, and returns its code.
pub(super) fn call(function: &'static str, arguments: &[Argument]) -> u32 {
    let Some(shared) = CURRENT.with_borrow(Clone::clone) else {
        return INVALID_USAGE; // The thread has no fake.
    };
    let mut state = lock(&shared);
    state.calls.push(function);
    if ERROR_TEXTS.contains(&function) {
        // They return no code, and the facade may call them for a communicator that has ended.
        return state.apply_rules(function).0;
    }
    let text = call_text(function, arguments, &state.memory);
    state.log.push(text);
    let Some(raw) = Argument::comm(arguments) else { return state.play(function, arguments) };
    state.enter(function, raw);
    let delay = if function == "ncclCommGetAsyncError" { state.async_error_delay } else { Duration::ZERO };
    // Other threads may call meanwhile.
    drop(state);
    std::thread::sleep(delay);
    let mut state = lock(&shared);
    let code = state.play(function, arguments);
    state.leave(raw);
    code
}

/// Returns the text of an error, after its call.
pub(super) fn error_text() -> *const c_char {
    CURRENT.with_borrow(|shared| shared.as_ref().map_or(ptr::null(), |shared| lock(shared).next_error_text()))
}

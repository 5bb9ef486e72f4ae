//! Dispatches a C call to the fake that its thread is attached to, or that the handle of its communicator names.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use libnccl::sys::ncclComm_t;

use super::arguments::{Argument, call_text};
use super::model::State;
use super::rule::{INVALID_USAGE, SUCCESS};

/// The state of a fake, which its clones and threads share.
pub(super) type SharedState = Arc<Mutex<State>>;

/// Functions that the log leaves out: the facade calls them for the text of every error.
const ERROR_TEXTS: [&str; 2] = ["ncclGetErrorString", "ncclGetLastError"];

thread_local! {
    /// The fake that this thread's calls go to.
    static CURRENT: RefCell<Option<SharedState>> = const { RefCell::new(None) };
    /// The number of groups that this thread started before it had a fake.
    static EARLY_GROUPS: Cell<u32> = const { Cell::new(0) };
}

/// All fakes, by their number, for threads of the facade: the communicator of their first call identifies the fake.
static FAKES: Mutex<BTreeMap<usize, Weak<Mutex<State>>>> = Mutex::new(BTreeMap::new());

const NUMBER_BITS: u32 = 24;

/// Returns the handle of communicator `number` of a fake, which is not an address.
pub(super) fn handle(fake: usize, number: usize) -> ncclComm_t {
    ptr::without_provenance_mut((fake << NUMBER_BITS | (number + 1)) << 8)
}

pub(super) fn number(raw: ncclComm_t) -> Option<usize> {
    ((raw.addr() >> 8) & ((1 << NUMBER_BITS) - 1)).checked_sub(1)
}

/// Returns the number of the fake that a communicator belongs to.
fn fake(raw: ncclComm_t) -> usize {
    raw.addr() >> 8 >> NUMBER_BITS
}

/// Returns a communicator's name in the log.
pub(super) fn comm_name(raw: ncclComm_t) -> String {
    number(raw).map_or_else(|| "null".into(), |number| format!("comm{number}"))
}

/// Enables threads without a fake to find this one by its communicators.
pub(super) fn publish(shared: &SharedState) {
    let number = lock(shared).fake;
    FAKES.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::downgrade(shared));
}

/// Attaches a thread without a fake to the fake of the call's communicator.
fn attach_by_communicator(function: &'static str, arguments: &[Argument]) -> Option<SharedState> {
    let Some(raw) = Argument::comm(arguments) else {
        if function == "ncclGroupStart" {
            EARLY_GROUPS.set(EARLY_GROUPS.get() + 1);
        }
        return None;
    };
    let fakes = FAKES.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = fakes.get(&fake(raw))?.upgrade()?;
    drop(fakes);
    attach(&shared);
    for _ in 0..EARLY_GROUPS.take() {
        call("ncclGroupStart", &[]);
    }
    Some(shared)
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
    let attached = CURRENT.with_borrow(Clone::clone);
    let Some(shared) = attached.or_else(|| attach_by_communicator(function, arguments)) else {
        return if function == "ncclGroupStart" { SUCCESS } else { INVALID_USAGE };
    };
    let mut state = lock(&shared);
    state.calls.push(function);
    if ERROR_TEXTS.contains(&function) {
        // They return no code, and the facade may call them for a communicator that has ended.
        return state.apply_rules(function).0;
    }
    let text = call_text(function, arguments, &state.memory);
    state.log.push(text);
    let raw = Argument::comm(arguments);
    if let Some(raw) = raw {
        state.enter(function, raw);
    }
    let is_parameter = function.starts_with("ncclParam");
    if is_parameter && std::mem::replace(&mut state.is_in_parameters, true) {
        state.violations.push(format!("{function} while another thread is in a parameter function"));
    }
    let (slow, delay) = state.behavior.delay;
    let mut delay = if function.starts_with(slow) { delay } else { Duration::ZERO };
    // Other threads may call meanwhile.
    loop {
        drop(state);
        std::thread::sleep(delay);
        state = lock(&shared);
        if !state.waits(function, raw) {
            break;
        }
        delay = Duration::from_millis(1);
    }
    let code = state.play(function, arguments);
    if let Some(raw) = raw {
        state.leave(raw);
    }
    if is_parameter {
        state.is_in_parameters = false;
    }
    code
}

/// Returns the text of an error, after its call.
pub(super) fn error_text() -> *const c_char {
    CURRENT.with_borrow(|shared| shared.as_ref().map_or(ptr::null(), |shared| lock(shared).next_error_text()))
}

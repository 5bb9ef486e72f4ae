//! A shared object that contains NCCL's functions on the CPU and the facade, as a user's plugin does: no linker flag of this
//! project applies to it.
#![allow(unsafe_code, non_snake_case, clippy::wildcard_imports)]

use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use libnccl::sys::*;
use libnccl_cpu::TABLE;
use libnccl_observe::{Action, Recorder, Watchdog};

macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
                const FUNCTION: unsafe extern "C" fn($($type),*) $(-> $returned)? = TABLE.$name.expect(stringify!($name));
                // SAFETY: the caller upholds the same contract.
                unsafe { FUNCTION($($argument),*) }
            }
        )*
    };
}
libnccl::for_each_function!(export);

/// Writes recordings to a file at each signal of this number. Returns 0 on success.
///
/// # Safety
/// `path` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plugin_write_on_signal(signal: c_int, path: *const c_char) -> c_int {
    // SAFETY: the caller's contract.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
    c_int::from(Recorder::write_on_signal(signal, path.into()).is_err())
}

/// Starts a watchdog, whose thread polls communicators from then on. Returns 0 on success.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_watch() -> c_int {
    let watchdog = Watchdog::new(Duration::from_millis(4), |_| Action::Continue);
    c_int::from(watchdog.map(std::mem::forget).is_err())
}

/// Returns a number.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_number() -> c_int {
    7
}

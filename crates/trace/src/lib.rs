//! An interposer: a shared object with NCCL's names and soname that is loaded before NCCL. It records the operations of each
//! communicator, as `libnccl_observe::Recorder` does, and forwards every call to NCCL. See docs/hangs.md.
//!
//! Calls between modules go one way: exports -> `operations`, `lifecycle`, `group` -> `thread` -> `dump` -> `registry` ->
//! `communicator`, `library`.
#![warn(clippy::disallowed_methods)] // libnccl reads variables.
#![allow(unsafe_code, non_snake_case, clippy::wildcard_imports)]

mod arguments;
mod communicator;
mod dump;
mod group;
mod hooks;
mod library;
mod lifecycle;
mod operations;
mod per_process;
mod registry;
mod returned;
mod signal;
mod thread;

use libnccl::sys::device::*;
use libnccl::sys::*;

use operations::{Argument, Starter};

/// A symbol that marks this interposer, so that two of them do not forward calls to each other.
#[unsafe(export_name = "libnccl_trace")]
pub static MARK: u8 = 0;

/// Exports a function under both of its names. `ncclXxx` runs `$call`. `pncclXxx`, which profilers call to bypass interposers,
/// always calls NCCL.
macro_rules! export_both {
    ($table:ident, $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?, $call:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
            $call
        }

        const _: () = {
            #[unsafe(export_name = concat!("p", stringify!($name)))]
            unsafe extern "C" fn profiling($($argument: $type),*) $(-> $returned)? {
                library::forward!($table.$name($($argument),*))
            }
        };
    };
}

/// Exports functions that have hooks, that start operations (which are recorded), or that are only forwarded to NCCL.
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(export_both! { functions, $name($($argument: $type),*) $(-> $returned)?, {
            let forward = || library::forward!(functions.$name($($argument),*));
            const STARTER: Option<Starter> = Starter::find(stringify!($name), &[$(stringify!($argument)),*]);
            match (const { hooks::HOOKS.$name }, STARTER) {
                // SAFETY: the caller upholds the contract of NCCL's function, which is the hook's.
                (Some(hook), _) => unsafe { hook($($argument),*) },
                (None, Some(starter)) => thread::record(&starter, &[$($argument.word()),*], forward),
                (None, None) => forward(),
            }
        } })*
    };
}

/// Exports functions that are only forwarded to NCCL.
macro_rules! export_device {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(export_both! {
            device_functions, $name($($argument: $type),*) $(-> $returned)?,
            library::forward!(device_functions.$name($($argument),*))
        })*
    };
}

libnccl::for_each_function!(export);
libnccl::for_each_device_function!(export_device);

/// A function that NCCL's library exports and programs look up. NCCL's header does not declare it, so no table contains it.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInit() {
    library::reset_debug();
}

#[unsafe(no_mangle)]
extern "C" fn pncclResetDebugInit() {
    library::reset_debug();
}

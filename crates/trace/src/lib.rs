//! A shared object with NCCL's names and soname, which a program gets in NCCL's place: it records the operations of each
//! communicator, as `libnccl_observe::Recorder` does, and passes every call on to NCCL. See docs/hangs.md.
//!
//! Data goes one way: exports -> `operations`, `lifecycle`, `group` -> `thread` -> `dump` -> `registry` -> `communicator`, `library`.
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

/// Marks interposers like this one, so that none forwards calls to another one.
#[unsafe(export_name = "libnccl_trace")]
pub static MARK: u8 = 0;

/// Exports a function under both of its names. A call of `ncclXxx` does `$call`; one of `pncclXxx`, by which profilers reach past
/// others, always goes to NCCL.
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

/// Exports functions that have hooks, start operations, which are recorded, or just go on to NCCL.
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

/// Exports functions that go on to NCCL.
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

/// NCCL's header hides this function, so that it is in no table; its library exports it, and programs look it up.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInit() {
    library::reset_debug();
}

#[unsafe(no_mangle)]
extern "C" fn pncclResetDebugInit() {
    library::reset_debug();
}

//! A shared object with NCCL's names and soname, which a program gets in NCCL's place: it records the operations of each
//! communicator, as `libnccl::Recorder` does, and passes every call on to NCCL. See docs/trace.md.
//!
//! Data goes one way: exports -> `operations`, `lifecycle`, `group` -> `thread` -> `dump` -> `registry` -> `communicator`, `library`.
#![allow(unsafe_code, non_snake_case, clippy::wildcard_imports)]

mod arguments;
mod communicator;
mod dump;
mod group;
mod hooks;
mod library;
mod lifecycle;
mod missing;
mod operations;
mod per_process;
mod registry;
mod signal;
mod thread;

use libnccl::sys::device::*;
use libnccl::sys::*;

/// A symbol by which such libraries know each other, so that none passes calls on to another one.
#[unsafe(export_name = "libnccl_trace")]
pub static MARK: u8 = 0;

/// Exports functions under both of their names. A call of `ncclXxx` goes to its hook, if there is one, or else on to NCCL; one
/// of `pncclXxx`, by which profilers reach past others, always to NCCL.
macro_rules! export_from {
    ($table:ident: $hooks:expr; $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
                match const { $hooks.$name } {
                    // SAFETY: the caller upholds the contract of NCCL's function, which is the hook's.
                    Some(hook) => unsafe { hook($($argument),*) },
                    None => library::forward!($table.$name($($argument),*)),
                }
            }

            const _: () = {
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                unsafe extern "C" fn profiling($($argument: $type),*) $(-> $returned)? {
                    library::forward!($table.$name($($argument),*))
                }
            };
        )*
    };
}

macro_rules! export {
    ($($functions:tt)*) => {
        export_from! { functions: hooks::HOOKS; $($functions)* }
    };
}

macro_rules! export_device {
    ($($functions:tt)*) => {
        export_from! { device_functions: DeviceFunctions::EMPTY; $($functions)* }
    };
}

libnccl::for_each_function!(export);
libnccl::for_each_device_function!(export_device);

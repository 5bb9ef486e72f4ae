//! The CPU backend of NCCL's C ABI as a shared object that exports only NCCL's functions.
//!
//! As in NCCL, each function has two names: `ncclXxx`, which a profiler may interpose, and `pncclXxx`.
#![allow(unsafe_code, non_snake_case, clippy::wildcard_imports)]

use libnccl::sys::device::*;
use libnccl::sys::*;
use libnccl_cpu::{DEVICE_TABLE, TABLE};

/// Exports functions of a table of the CPU backend.
macro_rules! export_from {
    ($table:ident: $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
                const FUNCTION: unsafe extern "C" fn($($type),*) $(-> $returned)? =
                    $table.$name.expect(stringify!($name));
                // SAFETY: the caller upholds the same contract.
                unsafe { FUNCTION($($argument),*) }
            }

            const _: () = {
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                unsafe extern "C" fn profiling($($argument: $type),*) $(-> $returned)? {
                    // SAFETY: the caller upholds the same contract.
                    unsafe { $name($($argument),*) }
                }
            };
        )*
    };
}

macro_rules! export {
    ($($functions:tt)*) => {
        export_from! { TABLE: $($functions)* }
    };
}
libnccl::for_each_function!(export);

macro_rules! export_device {
    ($($functions:tt)*) => {
        export_from! { DEVICE_TABLE: $($functions)* }
    };
}
libnccl::for_each_device_function!(export_device);

/// A function that NCCL's library exports, but NCCL's header does not declare.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInit() {
    libnccl_cpu::ncclResetDebugInit();
}

#[unsafe(no_mangle)]
extern "C" fn pncclResetDebugInit() {
    libnccl_cpu::ncclResetDebugInit();
}

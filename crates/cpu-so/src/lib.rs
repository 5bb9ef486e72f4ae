//! The CPU implementation of NCCL's C ABI as a shared object that exports only NCCL's functions.
//!
//! As in NCCL, each function has two names: `ncclXxx`, which a profiler may interpose, and `pncclXxx`.
#![allow(unsafe_code, non_snake_case, clippy::wildcard_imports)]

use libnccl::sys::*;

macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
                const FUNCTION: unsafe extern "C" fn($($type),*) $(-> $returned)? =
                    libnccl_cpu::TABLE.$name.expect(stringify!($name));
                // SAFETY: the caller upholds the same contract.
                unsafe { FUNCTION($($argument),*) }
            }
        )*

        mod profiling {
            use super::*;

            $(
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
                    // SAFETY: the caller upholds the same contract.
                    unsafe { super::$name($($argument),*) }
                }
            )*
        }
    };
}

libnccl::for_each_function!(export);

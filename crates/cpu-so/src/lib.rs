//! The CPU implementation of NCCL's C ABI as a shared object that exports NCCL's names, and nothing else.
//!
//! As in NCCL, each function is there twice: `ncclXxx`, which a profiler may replace, and `pncclXxx`.
#![allow(unsafe_code, non_snake_case, clippy::wildcard_imports)]

use libnccl::sys::*;

macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
                const FUNCTION: unsafe extern "C" fn($($type),*) $(-> $returned)? =
                    libnccl_cpu::TABLE.$name.expect(stringify!($name));
                // SAFETY: the caller keeps to the same contract.
                unsafe { FUNCTION($($argument),*) }
            }
        )*

        mod twins {
            use super::*;

            $(
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
                    // SAFETY: the caller keeps to the same contract.
                    unsafe { super::$name($($argument),*) }
                }
            )*
        }
    };
}

libnccl::for_each_function!(export);

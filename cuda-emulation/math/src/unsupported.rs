//! Functions that are errors.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use cuda_common::advice;

/// Says once for each function that it is not there, and returns the code.
pub(crate) fn refuse(function: &'static str, code: c_int) -> c_int {
    static SAID: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(function) {
        let message =
            format!("libnccl: the CPU stand-in for CUDA does not support {function}{}\n", advice(function));
        let _ = std::io::stderr().write_all(message.as_bytes()); // In one piece; if stderr is closed, it is lost.
    }
    code
}

/// Exports functions that return a code, whatever their arguments: each name after the prefix, with each of the suffixes.
macro_rules! unsupported {
    ($prefix:literal $code:ident: $($suffixes:tt { $($name:ident)* })*) => {
        $($(unsupported!(@name $prefix $code $name $suffixes);)*)*
    };
    (@name $prefix:literal $code:ident $name:ident [$($suffix:literal)*]) => {$(
        const _: () = {
            // The arguments, which differ, are left where the caller put them.
            #[unsafe(export_name = concat!($prefix, stringify!($name), $suffix))]
            extern "C" fn function() -> std::ffi::c_int {
                $crate::unsupported::refuse(concat!($prefix, stringify!($name), $suffix), $code)
            }
        };
    )*};
}

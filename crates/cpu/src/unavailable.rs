//! The functions that are not implemented: each says so.
#![allow(unsafe_code, non_snake_case, clippy::wildcard_imports)]

use std::ffi::c_char;

use libnccl::sys::*;

use crate::last_error;

/// What a function answers that is not implemented.
trait Answer {
    fn unavailable(function: &str) -> Self;
}

impl Answer for ncclResult_t {
    fn unavailable(function: &str) -> Self {
        last_error::set(&format!("{function} is not available in the CPU implementation"));
        Self::ncclInvalidUsage
    }
}

impl Answer for () {
    fn unavailable(_: &str) -> Self {}
}

impl Answer for *const c_char {
    fn unavailable(_: &str) -> Self {
        c"".as_ptr()
    }
}

macro_rules! define_unavailable {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(
            extern "C" fn $name($(_: $type),*) $(-> $returned)? {
                Answer::unavailable(stringify!($name))
            }
        )*

        pub(crate) const TABLE: Functions = Functions { $($name: Some($name)),* };
    };
}

libnccl::for_each_function!(define_unavailable);

//! The fake's C functions: one for each function of the header, all of which end in [`call`].
#![allow(unsafe_code)]

use std::ffi::c_char;

use libnccl::sys::{Functions, ncclResult_t};

use super::arguments::Argument;
use super::dispatch::{call, error_text};

/// The return types of the C functions.
trait Returned {
    fn from_code(code: u32) -> Self;
}

impl Returned for ncclResult_t {
    fn from_code(code: u32) -> Self {
        Self(code)
    }
}

impl Returned for *const c_char {
    fn from_code(_: u32) -> Self {
        error_text()
    }
}

impl Returned for () {
    fn from_code(_: u32) {}
}

macro_rules! define_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        #[allow(non_snake_case, clippy::wildcard_imports)]
        mod functions {
            use super::*;
            use libnccl::sys::*;

            $(
                pub(super) unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
                    let arguments: &[Argument] = &[$(
                        Argument::from($argument).read_if_input(stringify!($name), stringify!($argument))
                    ),*];
                    Returned::from_code(call(stringify!($name), arguments))
                }
            )*
        }

        /// Returns the functions of the header that `has` keeps.
        pub(super) fn table(has: impl Fn(&str) -> bool) -> Functions {
            Functions { $($name: has(stringify!($name)).then_some(functions::$name as _)),* }
        }
    };
}
libnccl::for_each_function!(define_functions);

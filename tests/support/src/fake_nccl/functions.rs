//! The fake's C functions: one for each function of the header, all of which end in [`call`].
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::sync::atomic::{AtomicUsize, Ordering};

use libnccl::sys::{Functions, ncclResult_t, ncclUniqueId};

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

        /// All functions of the header.
        pub(super) const ALL: Functions = Functions { $($name: Some(functions::$name)),* };
    };
}
libnccl::for_each_function!(define_functions);

type GetUniqueId = unsafe extern "C" fn(*mut ncclUniqueId) -> ncclResult_t;

/// Returns a different `ncclGetUniqueId` at each call: the facade stores process-wide which function failed.
pub(super) fn next_get_unique_id() -> GetUniqueId {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn get<const N: usize>(id: *mut ncclUniqueId) -> ncclResult_t {
        // Keeps the linker from merging the functions into one.
        std::hint::black_box(N);
        ncclResult_t(call("ncclGetUniqueId", &[id.into()]))
    }
    macro_rules! row {
        ($row:literal: $($column:literal)*) => { [$(get::<{ 16 * $row + $column }> as GetUniqueId),*] };
    }
    macro_rules! rows {
        ($($row:literal)*) => { [$(row!($row: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)),*] };
    }
    const FUNCTIONS: [[GetUniqueId; 16]; 16] = rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    FUNCTIONS.as_flattened()[NEXT.fetch_add(1, Ordering::Relaxed)]
}

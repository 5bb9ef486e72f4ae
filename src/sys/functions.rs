//! The function table that every backend fills, and the only way in which the facade calls NCCL.

#[cfg(any(feature = "dlopen", all(nccl_linked, not(nccl_archive))))]
use std::ffi::{CStr, c_void};

use super::bindings::types::*;

/// Defines the struct `$table`, with one field per function.
macro_rules! define_table {
    (
        $(#[$attribute:meta])* $table:ident:
        $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*
    ) => {
        $(#[$attribute])*
        ///
        /// Its layout is that of a C array of function pointers in the header's order.
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $table {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub $name: Option<unsafe extern "C" fn($($argument: $type),*) $(-> $returned)?>,
            )*
        }

        impl $table {
            /// The names of the functions, in the header's order.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// A table without any function.
            pub const EMPTY: Self = Self { $($name: None),* };

            /// Returns the functions at the addresses that `address_of` gives for their names, null if there is none.
            ///
            /// # Safety
            /// They have the header's signatures, and stay callable until the process ends.
            #[cfg(any(feature = "dlopen", all(nccl_linked, not(nccl_archive))))]
            pub(crate) unsafe fn from_addresses(address_of: impl Fn(&CStr) -> *const c_void) -> Self {
                Self {$(
                    $name: {
                        type Function = Option<unsafe extern "C" fn($($argument: $type),*) $(-> $returned)?>;
                        const NAME: &CStr = c_name(concat!(stringify!($name), "\0"));
                        // SAFETY: the caller guarantees the signature; a null pointer is `None`.
                        unsafe { std::mem::transmute::<*const c_void, Function>(address_of(NAME)) }
                    }
                ),*}
            }

            /// Returns the name of each function, in the order of [`NAMES`](Self::NAMES), and `true` if it is present.
            pub fn present(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
                [$((stringify!($name), self.$name.is_some())),*].into_iter()
            }
        }
    };
}
pub(super) use define_table;

/// Returns a name that ends with a NUL as a C string.
#[cfg(any(feature = "dlopen", all(nccl_linked, not(nccl_archive))))]
pub(super) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("the NUL is not the name's last byte"),
    }
}

macro_rules! define_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        define_table! {
            /// Pointers to NCCL's functions, `None` where an implementation lacks one.
            Functions:
            $(fn $name($($argument: $type),*) $(-> $returned)?;)*
        }
    };
}
for_each_function!(define_functions);

//! The function table that every backend fills, and the only way in which the facade calls NCCL.

#[cfg(feature = "dlopen")]
use super::bindings::dynamic::NcclLibrary;
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

            /// Returns the name of each function, in the order of [`NAMES`](Self::NAMES), and `true` if it is present.
            pub fn present(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
                [$((stringify!($name), self.$name.is_some())),*].into_iter()
            }
        }

        #[cfg(feature = "dlopen")]
        impl From<&NcclLibrary> for $table {
            /// Returns the functions that the library has. They are callable as long as it is loaded.
            fn from(library: &NcclLibrary) -> Self {
                Self { $($name: library.$name.as_ref().ok().copied()),* }
            }
        }
    };
}
pub(super) use define_table;

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

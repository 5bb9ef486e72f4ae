//! The function tables: what every backend fills, and the only thing the facade calls through.

use super::*;

/// The struct `$table` of all these functions.
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
            /// The functions' names, in the header's order.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// A table without any function.
            pub const EMPTY: Self = Self { $($name: None),* };

            /// Whether each function of [`NAMES`](Self::NAMES) is there, in the same order.
            pub fn present(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
                [$((stringify!($name), self.$name.is_some())),*].into_iter()
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

        #[cfg(feature = "dlopen")]
        impl From<&dynamic::NcclLibrary> for Functions {
            fn from(library: &dynamic::NcclLibrary) -> Self {
                Self { $($name: library.$name.as_ref().ok().copied()),* }
            }
        }
    };
}
for_each_function!(define_functions);

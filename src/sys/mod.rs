//! The raw layer: NCCL's C API as the vendored header declares it, unchanged.
//!
//! Everything here is generated from the headers in `vendor-headers` (see `build/bindings.rs`), except [`Functions`], the table
//! that every backend fills and through which the safe API calls NCCL.
//!
//! | item | description |
//! |---|---|
//! | types and constants | at this module's root. Create the configurations with `initializer()`: their `Default` is all zeros, which NCCL does *not* treat as "not set" |
//! | `linked` | the functions as an `extern` block, which the linked backend puts into the table; needs feature `link` |
//! | `dynamic` | the struct that bindgen generates for a library that is loaded at run time, whose fields the loaded backend puts into the table; needs feature `dlopen` |
//! | [`Functions`] | the table: plain function pointers, `None` where the library lacks a function |
//! | `device` | the host functions of the device API; needs feature `device-api` |
//! | [`since`] | the first version that has a function, an enum value or a field |
//!
//! # Stability
//!
//! This module follows NCCL's header. Any version of this crate, even a patch release, may add the items of a new header:
//! constants, fields of structs, and functions with their fields in [`Functions`]. Nothing is removed. To keep compiling, code
//! must create a table with `..Functions::EMPTY`, start structs from their initializers, and match unknown enum values with a
//! wildcard arm.
#![allow(unsafe_code, missing_docs, missing_debug_implementations)]
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::wildcard_imports)]

/// Declares modules of generated text, in which the items of the surrounding module are in scope. The `unsafe` in them
/// is bindgen's: zeroed structs, and calls through loaded pointers.
macro_rules! generated {
    ($($(#[$attribute:meta])* $visibility:vis mod $name:ident = $file:literal;)*) => {$(
        $(#[$attribute])*
        #[allow(clippy::all, clippy::ptr_as_ptr, clippy::undocumented_unsafe_blocks)]
        #[allow(clippy::semicolon_if_nothing_returned, clippy::doc_markdown, unused_imports)]
        $visibility mod $name {
            use super::*;

            include!(concat!(env!("OUT_DIR"), "/", $file));
        }
    )*};
}

generated! {
    mod types = "types.rs";
    /// The types of the device API.
    #[cfg_attr(not(feature = "device-api"), allow(dead_code, unreachable_pub))]
    mod device_types = "device_types.rs";
    mod initializers = "initializers.rs";
    mod table = "since.rs";
    /// The functions as an `extern` block. If a program calls one of them and the library lacks it, the program does not start.
    #[cfg(nccl_linked)]
    pub mod linked = "linked.rs";
    /// The struct that bindgen generates for a library that is loaded at run time. It includes the device API's functions.
    ///
    /// Each function has a field and a method. If the library lacks the function, the field is an `Err`, and the method panics
    /// when it is called. So call the functions through the fields.
    #[cfg(feature = "dlopen")]
    pub mod dynamic = "dynamic.rs";
}

#[allow(unused_imports)] // For the generated functions.
use device_types::*;
pub use table::SINCE;
pub use types::*;

// The macros `for_each_function` and `functions_by_release`, and the device API's macros.
include!(concat!(env!("OUT_DIR"), "/functions.rs"));
include!(concat!(env!("OUT_DIR"), "/device_functions.rs"));
#[cfg(all(nccl_linked, not(nccl_archive)))]
pub(crate) use {device_functions_by_release, functions_by_release};

/// Defines the struct `$table`, with one field per function.
macro_rules! define_table {
    (
        $(#[$attribute:meta])* $table:ident:
        $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*
    ) => {
        $(#[$attribute])*
        ///
        /// Laid out as a C array of function pointers in the header's order.
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

            /// Returns each function's name and whether the function is present, in the order of [`NAMES`](Self::NAMES).
            pub fn present(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
                [$((stringify!($name), self.$name.is_some())),*].into_iter()
            }
        }

        #[cfg(feature = "dlopen")]
        impl From<&dynamic::NcclLibrary> for $table {
            /// Creates a table of the functions that `library` has. They are callable as long as the library is loaded.
            fn from(library: &dynamic::NcclLibrary) -> Self {
                Self { $($name: library.$name.as_ref().ok().copied()),* }
            }
        }
    };
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

// Without the feature, the facade uses only a part.
#[cfg(not(feature = "device-api"))]
#[allow(dead_code, unreachable_pub, unused_macros)]
pub(crate) mod device;
#[cfg(feature = "device-api")]
pub mod device;

/// Returns the version code (as in [`NCCL_VERSION_CODE`]) of the first version that has `item`: a type, a function, an enum
/// value, or a field such as `ncclConfig.minCTAs`. For items that are older than 2.13.4, returns the code of 2.13.4. Returns
/// `None` for unknown items.
#[must_use]
pub const fn since(item: &str) -> Option<u32> {
    let mut index = 0;
    while index < SINCE.len() {
        let (name, code) = SINCE[index];
        if is_equal(name.as_bytes(), item.as_bytes()) {
            return Some(code);
        }
        index += 1;
    }
    None
}

/// Compares two texts. `==` is not const.
pub(crate) const fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while one.len() == other.len() && index < one.len() && one[index] == other[index] {
        index += 1;
    }
    one.len() == other.len() && index == one.len()
}

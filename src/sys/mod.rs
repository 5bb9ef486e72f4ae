//! The raw layer: NCCL's C API as the vendored header declares it, without opinions.
//!
//! Everything here is generated from the headers in `vendor-headers` (see `build/bindings.rs`), but for
//! [`Functions`], the table through which every backend is called, and the values that C spells as macros.
//!
//! | item | what it is |
//! |---|---|
//! | types and constants | once, at this module's root |
//! | `linked` | the functions as an `extern` block; needs feature `link` |
//! | `dynamic` | the functions as bindgen's run-time loaded struct; needs feature `dlopen` |
//! | [`Functions`] | the functions as plain pointers, null where the library lacks one |
//! | `device` | the host functions of the device API; needs feature `device-api` |
//! | [`since`] | the first release that has a function, an enum value or a field |
#![allow(unsafe_code, missing_docs, missing_debug_implementations)]
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::wildcard_imports)]

/// Generated text. Its `unsafe` is bindgen's: zeroed structs, and calls through loaded pointers.
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
    mod release = "since.rs";
    /// The functions as an `extern` block: calling one makes it required when the program starts.
    #[cfg(nccl_linked)]
    pub mod linked = "linked.rs";
    /// The functions as bindgen's run-time loaded struct.
    ///
    /// Its *fields* say which functions the library has. Its methods panic where one is absent: use the fields.
    #[cfg(feature = "dlopen")]
    pub mod dynamic = "dynamic.rs";
}
// The macro `for_each_function`, which has to stand before the module that uses it.
include!(concat!(env!("OUT_DIR"), "/functions.rs"));

/// Without the feature, the facade alone uses what it needs of it.
#[cfg(not(feature = "device-api"))]
#[allow(dead_code, unreachable_pub, unused_macros)]
pub(crate) mod device;
#[cfg(feature = "device-api")]
pub mod device;
mod functions;
mod initializers;

pub use functions::Functions;
pub use release::SINCE;
pub use types::*;

/// The version code (as in [`NCCL_VERSION_CODE`]) of the first examined release that has `item`: a function,
/// an enum value, or a field written `ncclConfig.minCTAs`.
#[must_use]
pub fn since(item: &str) -> Option<u32> {
    SINCE.iter().find(|(name, _)| *name == item).map(|(_, code)| *code)
}

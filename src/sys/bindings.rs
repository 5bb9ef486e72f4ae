//! The bindings that bindgen generates from `nccl.h` and `nccl_device_host.h`, as the build script has left them.

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
    pub(super) mod types = "types.rs";
    /// The types of the device API.
    #[cfg_attr(not(feature = "device-api"), allow(dead_code, unreachable_pub))]
    pub(super) mod device_types = "device_types.rs";
    /// The functions as an `extern` block: a program that calls one requires it when it starts.
    #[cfg(nccl_linked)]
    pub mod linked = "linked.rs";
    /// The functions as bindgen's run-time loaded struct, those of the device API too.
    ///
    /// Its *fields* tell which functions the library has. Use the fields: a method panics if its function is absent.
    #[cfg(feature = "dlopen")]
    pub mod dynamic = "dynamic.rs";
}

// For the modules of functions, which have no types of their own.
#[allow(unused_imports)]
use {device_types::*, types::*};

// The macros `for_each_function` and `functions_by_release`, and those of the device API.
include!(concat!(env!("OUT_DIR"), "/functions.rs"));
include!(concat!(env!("OUT_DIR"), "/device_functions.rs"));
#[cfg(all(nccl_linked, not(nccl_archive)))]
pub(crate) use {device_functions_by_release, functions_by_release};

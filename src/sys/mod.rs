//! The raw layer: NCCL's C API as the vendored header declares it, unchanged.
//!
//! Everything here is what bindgen generates from the headers in `vendor-headers` (see `build/bindings.rs`), except
//! [`Functions`], the table that every backend fills and through which the facade calls NCCL, and the initializer macros
//! of C.
//!
//! | item | description |
//! |---|---|
//! | types and constants | once, at this module's root |
//! | `linked` | the functions as an `extern` block, which the linked backend puts into the table; needs feature `link` |
//! | `dynamic` | the functions as bindgen's run-time loaded struct, whose fields the loaded backend puts into the table; needs feature `dlopen` |
//! | [`Functions`] | the table: plain pointers, null where the library lacks a function |
//! | `device` | the host functions of the device API; needs feature `device-api` |
//! | [`since`] | the first release that has a function, an enum value or a field |
//!
//! # Stability
//!
//! This module follows NCCL's header, and any release of this crate, patch releases too, may add what a new header adds:
//! functions, and with them fields of [`Functions`]; fields of structs; constants. What it has stays. Code that writes
//! `..Functions::EMPTY`, starts structs from their initializers and has an arm for unknown values keeps compiling.
#![allow(unsafe_code, missing_docs, missing_debug_implementations)]
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::wildcard_imports)]

// First, as its macros are used by the modules below.
#[macro_use]
mod bindings;
// Without the feature, the facade uses it only in part.
#[cfg(not(feature = "device-api"))]
#[allow(dead_code, unreachable_pub, unused_macros)]
pub(crate) mod device;
#[cfg(feature = "device-api")]
pub mod device;
mod functions;
mod initializers;
mod releases;

#[cfg(feature = "dlopen")]
pub use bindings::dynamic;
#[cfg(nccl_linked)]
pub use bindings::linked;
pub use bindings::types::*;
#[cfg(all(nccl_linked, not(nccl_archive)))]
pub(crate) use bindings::{device_functions_by_release, functions_by_release};
pub use functions::Functions;
pub(crate) use releases::is_equal;
pub use releases::{SINCE, since};

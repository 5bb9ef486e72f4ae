//! The macro that defines options, their checks, and their C form.
#![allow(unsafe_code)] // Zeroes the padding of a C struct.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::{Error, InvalidArgumentKind, Result};
use crate::sys;
use crate::version::Version;

/// The largest number that fits into an `int` of C.
pub(super) const MAX: u32 = c_int::MAX.cast_unsigned();

/// Defines a struct of options, its setters, and `write`. `write` copies the options that are set into the C struct, or fails if
/// the library lacks one or a value is out of range.
///
/// For the fields in `others`, the setters and the conversion to C are hand-written.
macro_rules! options {
    (
        $(#[$attribute:meta])*
        pub struct $options:ident => $c_type:ident;
        $(
            $(#[$documentation:meta])+
            $option:ident: $value:ty => $field:ident $(, in $range:expr)?;
        )+
        others { $($other:ident: $other_type:ty,)+ }
        $(unknown_to_nccl { $unknown:ident: $unknown_type:ty })?
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
        pub struct $options {
            $($option: Option<$value>,)+
            $($other: Option<$other_type>,)+
            $($unknown: $unknown_type,)?
        }

        impl $options {
            /// Creates options with nothing set.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            $(
                $(#[$documentation])+
                #[must_use]
                pub fn $option(mut self, $option: $value) -> Self {
                    self.$option = Some($option);
                    self
                }
            )+

            /// Returns whether no option of NCCL is set. The C function without options is then equivalent.
            pub(crate) fn is_default(&self) -> bool {
                true $(&& self.$option.is_none())+ $(&& self.$other.is_none())+
            }

            fn write(&self, raw: &mut sys::$c_type, target: Target<'_>) -> Result<()> {
                $(
                    if let Some(value) = self.$option {
                        target.require(concat!(stringify!($c_type), ".", stringify!($field)))?;
                        $(target.check_range(stringify!($option), value, $range)?;)?
                        raw.$field = value as _;
                    }
                )+
                Ok(())
            }
        }
    };
}
pub(super) use options;

/// The call and the library that receive options.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) call: &'static str,
    pub(super) found: Version,
    pub(super) library: &'a str,
}

impl Target<'_> {
    /// Returns an error if the library lacks a field of a C struct.
    pub(super) fn require(self, field: &'static str) -> Result<()> {
        // `sys::since` has the names without `_t`.
        self.require_version(field, Version::since(&field.replacen("_t.", ".", 1)))
    }

    pub(super) fn require_version(self, function: &'static str, since: Version) -> Result<()> {
        let Self { found, library, .. } = self;
        if found < since {
            return Err(Error::Unsupported { function, since, found, library: library.into() });
        }
        Ok(())
    }

    pub(super) fn check_range<T>(self, option: &str, value: T, range: RangeInclusive<T>) -> Result<()>
    where
        T: PartialOrd + Display,
    {
        if range.contains(&value) {
            return Ok(());
        }
        let (min, max) = range.into_inner();
        Err(self.argument(format!("{option} is {value}; expected {min} to {max}")))
    }

    pub(super) fn check_order(self, min_ctas: Option<u32>, max_ctas: Option<u32>) -> Result<()> {
        match (min_ctas, max_ctas) {
            (Some(min), Some(max)) if min > max => {
                Err(self.argument(format!("min_ctas is {min}, which is above max_ctas, {max}")))
            }
            _ => Ok(()),
        }
    }

    /// Points `raw`, the C field of a text option, to the returned C string.
    pub(super) fn c_string(
        self,
        field: &'static str,
        option: &str,
        text: &Option<Box<str>>,
        raw: &mut *const c_char,
    ) -> Result<Option<Arc<CStr>>> {
        let Some(text) = text.as_deref() else { return Ok(None) };
        self.require(field)?;
        let c_string = CString::new(text).map_err(|error| {
            let position = error.nul_position();
            self.argument(format!("{option} is {text:?}; expected no NUL, and byte {position} is one"))
        })?;
        let c_string: Arc<CStr> = c_string.into();
        *raw = c_string.as_ptr();
        Ok(Some(c_string))
    }

    pub(super) fn argument(self, problem: impl Into<Box<str>>) -> Error {
        Error::argument(self.call, InvalidArgumentKind::Value, problem)
    }
}

/// The options of a communicator in C, with the strings that they point to.
#[derive(Debug)]
pub(crate) struct RawConfig {
    pub(super) raw: sys::ncclConfig_t,
    pub(super) name: Option<Arc<CStr>>,
    /// The name of the network, which NCCL copies during the call.
    pub(super) _net_name: Option<Arc<CStr>>,
}

impl RawConfig {
    /// Returns the address for a call that reads the struct before it returns. The address is valid until `self` is moved.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut sys::ncclConfig_t {
        /// The offset after the last field. The rest is the struct's only padding.
        const END: usize = offset_of!(sys::ncclConfig_t, nvlsHostMode) + size_of::<c_int>();
        let raw = &raw mut self.raw;
        // Later versions have fields there and read them. A move need not copy padding, so it is zeroed just before the
        // call.
        // SAFETY: the bytes from `END` on belong to the struct, and to no field.
        unsafe { raw.cast::<u8>().add(END).write_bytes(0, size_of::<sys::ncclConfig_t>() - END) };
        raw
    }

    /// Returns the communicator's name. NCCL keeps a pointer to it, so the communicator and all its children must keep it
    /// alive.
    pub(crate) fn name(&self) -> Option<Arc<CStr>> {
        self.name.clone()
    }
}

/// The options of a collective in C, with the string that they point to.
///
/// NCCL reads both until the call returns or the outermost group ends, so a group keeps this value until then. The struct is not
/// in a `Box`: the value is moved meanwhile, and moving a `Box` invalidates pointers to its content.
#[derive(Debug, Clone)]
pub(crate) struct RawCollectiveConfig {
    pub(super) raw: Arc<sys::ncclCollConfig_t>,
    pub(super) _alg_selection: Option<Arc<CStr>>,
}

// SAFETY: its pointers refer to its own text and to an event, which CUDA accepts from any thread.
unsafe impl Send for RawCollectiveConfig {}

impl RawCollectiveConfig {
    /// Returns the address of the struct, valid as long as `self` exists.
    pub(crate) fn as_ptr(&self) -> *const sys::ncclCollConfig_t {
        Arc::as_ptr(&self.raw)
    }
}

/// A CUDA event; not null.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Event(pub(super) sys::cudaEvent_t);

// SAFETY: only a handle, which CUDA accepts from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

//! The host functions of NCCL's device API (since NCCL 2.28.3), as `vendor-headers/nccl_device_host.h` declares
//! them. They prepare the resources with which kernels communicate.
//!
//! Kernels are compiled with NVIDIA's own headers, and the data that they share with the host has the layout of those headers.
//! So, unlike the rest of the API, this part depends on NCCL's version:
//!
//! - [`ncclCommProperties_t`] and [`ncclDevCommRequirements_t`]: from [`LAYOUT_SINCE`] on, new versions only append fields. The
//!   field `version` determines which fields a library reads and writes. A library rejects a version newer than its own. So
//!   create these structs with `initializer(version)`, where `version` is the version of the library that will receive them.
//! - [`ncclDevComm_t`]: declared with the layout of 2.31.2 and 2.32.3. In earlier versions it is smaller, and its fields differ.
//!
//! [`DeviceFunctions`] is the table of these functions. [`Functions`](super::Functions) is the table of the functions in
//! `nccl.h`.

#[cfg(feature = "dlopen")]
use super::dynamic;
use super::types::*;

pub use super::device_types::*;

/// The version code of the first NCCL version with a stable layout of `ncclCommProperties_t` and `ncclDevCommRequirements_t`:
/// later versions only append fields.
pub const LAYOUT_SINCE: u32 = 22_907;

macro_rules! define_device_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        define_table! {
            /// Pointers to the device API's host functions, `None` where an implementation lacks one.
            DeviceFunctions:
            $(fn $name($($argument: $type),*) $(-> $returned)?;)*
        }
    };
}
for_each_device_function!(define_device_functions);

impl ncclCommProperties_t {
    /// Returns `NCCL_COMM_PROPERTIES_INITIALIZER` for a library whose `ncclGetVersion` returns `version`. The library fills in
    /// the fields of that version; newer fields stay zero.
    #[must_use]
    pub fn initializer(version: u32) -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: version.min(NCCL_VERSION_CODE),
            ..Self::default()
        }
    }
}

impl ncclDevCommRequirements_t {
    /// Returns an empty set of requirements (`NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER`) for a library whose `ncclGetVersion`
    /// returns `version`.
    #[must_use]
    pub fn initializer(version: u32) -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: version.min(NCCL_VERSION_CODE),
            ginContextCount: 4,
            ginTrafficClass: NCCL_CONFIG_UNDEF_INT,
            ginStrongSignalsRequired: true,
            ginVaSignalsRequired: true,
            ginCustomStride: 1,
            ..Self::default()
        }
    }
}

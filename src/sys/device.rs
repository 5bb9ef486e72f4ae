//! The host functions of NCCL's device API (since NCCL 2.28.3), as `vendor-headers/nccl_device_host.h` declares
//! them: they prepare what kernels need in order to communicate by themselves.
//!
//! Kernels are compiled with NVIDIA's own headers, and what they exchange with the host has those headers' layout.
//! So this part of NCCL is bound to releases as the rest is not:
//!
//! - [`ncclCommProperties_t`] and [`ncclDevCommRequirements_t`] are those of [`LAYOUT_SINCE`] and later, to which
//!   every release has appended. A library fills in, and reads, what the `version` in them had, and refuses one
//!   newer than itself: make them with `initializer(version)`, for the library that will get them.
//! - [`ncclDevComm_t`] is that of 2.31.2 and 2.32.3. Those of other releases are smaller, and mean something else.
//!
//! [`DeviceFunctions`] is the table of the functions, like [`Functions`].

use super::functions::define_table;
use super::*;

generated! {
    mod types = "device_types.rs";
}
include!(concat!(env!("OUT_DIR"), "/device_functions.rs"));

pub use self::types::*;

/// The version code of the first release with the structs' present layout, as far as they reach there.
pub const LAYOUT_SINCE: u32 = 22_907;

macro_rules! define_device_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        define_table! {
            /// Pointers to the device API's host functions, `None` where an implementation lacks one.
            DeviceFunctions:
            $(fn $name($($argument: $type),*) $(-> $returned)?;)*
        }

        #[cfg(feature = "dlopen")]
        impl DeviceFunctions {
            /// Looks the functions up in a library.
            ///
            /// # Safety
            /// They have the header's signatures there, and the library stays loaded.
            pub(crate) unsafe fn of(library: &libloading::Library) -> Self {
                // SAFETY: the caller's promise.
                unsafe {
                    Self { $($name: library.get(stringify!($name)).ok().map(|symbol| *symbol)),* }
                }
            }
        }
    };
}
for_each_device_function!(define_device_functions);

impl ncclCommProperties_t {
    /// `NCCL_COMM_PROPERTIES_INITIALIZER`, for a library whose `ncclGetVersion` answers `version`. It fills in the
    /// fields that came with that release or before; the others stay zero.
    #[must_use]
    pub fn initializer(version: u32) -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: of_header(version),
            ..Self::default()
        }
    }
}

impl ncclDevCommRequirements_t {
    /// `NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER`, nothing asked for, for a library whose `ncclGetVersion` answers
    /// `version`.
    #[must_use]
    pub fn initializer(version: u32) -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: of_header(version),
            ginContextCount: 4,
            ginTrafficClass: NCCL_CONFIG_UNDEF_INT,
            ginStrongSignalsRequired: true,
            ginVaSignalsRequired: true,
            ginCustomStride: 1,
            ..Self::default()
        }
    }
}

/// The release of a library, or that of the header if it is older.
fn of_header(version: u32) -> u32 {
    version.min(NCCL_VERSION_CODE)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn structs_have_the_sizes_of_2_32_3() {
        assert_eq!(size_of::<ncclTeam_t>(), 12);
        assert_eq!(size_of::<ncclCommProperties_t>(), 152);
        assert_eq!(size_of::<ncclDevCommRequirements_t>(), 120);
        assert_eq!(size_of::<ncclDevResourceRequirements_t>(), 56);
        assert_eq!(size_of::<ncclTeamRequirements_t>(), 32);
        assert_eq!(size_of::<ncclDevComm_t>(), 248);
        assert_eq!(offset_of!(ncclCommProperties_t, ginType), 36);
        assert_eq!(offset_of!(ncclCommProperties_t, devCommRuntimeVersionSize), 136);
        assert_eq!(offset_of!(ncclDevCommRequirements_t, cftBarrierCount), 112);
        assert_eq!(offset_of!(ncclDevComm_t, cftMultimemBarrier), 240);
    }

    #[test]
    fn initializers_name_no_release_newer_than_the_library() {
        for (library, expected) in [(22_907, 22_907), (NCCL_VERSION_CODE, 23_203), (29_900, 23_203)] {
            let properties = ncclCommProperties_t::initializer(library);
            assert_eq!((properties.version, properties.size), (expected, 152));
            assert_eq!(properties.magic, NCCL_API_MAGIC);
            let requirements = ncclDevCommRequirements_t::initializer(library);
            assert_eq!((requirements.version, requirements.size), (expected, 120));
        }
    }

    #[test]
    fn every_function_has_a_release() {
        assert_eq!(DeviceFunctions::NAMES.len(), 21);
        for name in DeviceFunctions::NAMES {
            assert!(since(name).is_some_and(|code| code >= 22_803), "{name}");
        }
        assert_eq!(since("ncclCommQueryProperties"), Some(22_902));
        assert_eq!(since("ncclCommProperties.ginType"), Some(LAYOUT_SINCE));
        assert!(DeviceFunctions::EMPTY.present().all(|(_, present)| !present));
    }
}

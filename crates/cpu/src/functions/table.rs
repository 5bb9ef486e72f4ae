//! The function table.

#![allow(clippy::wildcard_imports, reason = "the modules hold nothing but NCCL's functions")]

use libnccl::sys::Functions;

use super::children::*;
use super::collectives::*;
use super::groups::*;
use super::init::*;
use super::memory::*;
use super::one_sided::*;
use super::parameters::*;
use super::point_to_point::*;
use super::queries::*;
use super::reductions::*;
use super::teardown::*;
use super::windows::*;

macro_rules! define_table {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        /// Every function of NCCL's API.
        pub const TABLE: Functions = Functions { $($name: Some($name)),* };
    };
}
libnccl::for_each_function!(define_table);

#[cfg(feature = "device-api")]
mod device {
    use libnccl::sys::device::DeviceFunctions;

    use super::super::device_api::*;

    macro_rules! define_table {
        ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
            /// The host functions of NCCL's device API.
            pub const DEVICE_TABLE: DeviceFunctions = DeviceFunctions { $($name: Some($name)),* };
        };
    }
    libnccl::for_each_device_function!(define_table);
}
#[cfg(feature = "device-api")]
pub use device::DEVICE_TABLE;

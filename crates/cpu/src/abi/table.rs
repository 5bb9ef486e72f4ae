//! The function table.

#![allow(clippy::wildcard_imports, reason = "the modules hold nothing but NCCL's functions")]

use libnccl::sys::Functions;

use super::collectives::*;
use super::encryption::*;
use super::group::*;
use super::grow::*;
use super::init::*;
use super::memory::*;
use super::one_sided::*;
use super::parameters::*;
use super::point_to_point::*;
use super::query::*;
use super::red_op::*;
use super::shrink::*;
use super::split::*;
use super::suspend::*;
use super::teardown::*;
use super::window::*;

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

    use super::super::device_communicator::*;
    use super::super::properties::*;
    use super::super::team::*;
    use super::super::window_address::*;

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

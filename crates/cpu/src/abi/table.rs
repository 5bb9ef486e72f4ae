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

/// The host function of NCCL's device API that there is: the others are for kernels.
#[cfg(feature = "device-api")]
pub const DEVICE_TABLE: libnccl::sys::device::DeviceFunctions = libnccl::sys::device::DeviceFunctions {
    ncclCommQueryProperties: Some(super::properties::ncclCommQueryProperties),
    ..libnccl::sys::device::DeviceFunctions::EMPTY
};

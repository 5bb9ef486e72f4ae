//! NCCL's functions as C calls them, a file for each family in the order of `nccl.h`.
//!
//! A file has the C functions of its family, the checks of their arguments, and the operations that they start. Modules below
//! have no C functions: `comm` has communicators and groups, `coll` the plan and the transports of collectives, `shm` what
//! ranks share.
//!
//! # Safety
//!
//! The contract of every function here is the contract of its C declaration: a pointer that is not NULL points to what the
//! header says, and buffers stay valid until the call, or the group that it is in, has ended; on a stream, until the stream has
//! run it. Addresses of device memory are buffers too; they are not dereferenced before they are resolved.

#![allow(clippy::wildcard_imports, reason = "the modules hold nothing but NCCL's functions")]

mod children;
mod collectives;
#[cfg(feature = "device-api")]
mod device_api;
mod groups;
mod guard;
mod init;
mod memory;
pub(crate) mod one_sided;
mod parameters;
pub(crate) mod point_to_point;
mod queries;
mod reductions;
mod teardown;
mod windows;

#[cfg(feature = "device-api")]
pub use device::DEVICE_TABLE;
pub use queries::ncclResetDebugInit;

use libnccl::sys::Functions;

use self::children::*;
use self::collectives::*;
use self::groups::*;
use self::init::*;
use self::memory::*;
use self::one_sided::*;
use self::parameters::*;
use self::point_to_point::*;
use self::queries::*;
use self::reductions::*;
use self::teardown::*;
use self::windows::*;

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

    use super::device_api::*;

    macro_rules! define_table {
        ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
            /// The host functions of NCCL's device API.
            pub const DEVICE_TABLE: DeviceFunctions = DeviceFunctions { $($name: Some($name)),* };
        };
    }
    libnccl::for_each_device_function!(define_table);
}

//! NCCL's C functions, one file per family, in the order of `nccl.h`.
//!
//! A file contains the C functions of its family, the checks of their arguments, and the operations that they start. The modules below have
//! no C functions: `comm` contains communicators and groups, `coll` the plan and the transports of collectives, `shm` the state that ranks
//! share.
//!
//! # Safety
//!
//! The caller must meet the contract of the function's C declaration. A pointer that is not NULL must point to the data that the
//! header specifies. Buffers must stay valid until the call, or its group, has ended. If the operation is on a stream, its
//! buffers must stay valid until the stream has run it. This includes buffers in device memory, whose addresses are resolved
//! before they are dereferenced.

#![allow(clippy::wildcard_imports, reason = "the modules hold nothing but NCCL's functions")]

mod children;
mod collectives;
#[cfg(feature = "device-api")]
mod device_api;
mod guard;
mod init;
mod memory;
pub(crate) mod one_sided;
pub(crate) mod point_to_point;
mod queries;
mod teardown;

#[cfg(feature = "device-api")]
pub use device::DEVICE_TABLE;
pub use queries::ncclResetDebugInit;

use libnccl::sys::Functions;

use self::children::*;
use self::collectives::*;
use self::init::*;
use self::memory::*;
use self::one_sided::*;
use self::point_to_point::*;
use self::queries::*;
use self::teardown::*;

macro_rules! define_table {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        /// The CPU backend's functions: every function of NCCL's API.
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
            /// The CPU backend's host functions of NCCL's device API.
            pub const DEVICE_TABLE: DeviceFunctions = DeviceFunctions { $($name: Some($name)),* };
        };
    }
    libnccl::for_each_device_function!(define_table);
}

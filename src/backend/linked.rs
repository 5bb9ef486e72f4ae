//! Build-time linking.

use crate::sys::Functions;
use crate::sys::device::DeviceFunctions;

unsafe extern "C" {
    /// Compiled by `build/link.rs`. Functions newer than NCCL 2.13.4 are weak references there, null in a
    /// library that lacks them; a table made in Rust would make all 72 required when the program starts.
    #[link_name = "libnccl_linked_functions"]
    static FUNCTIONS: Functions;
    #[link_name = "libnccl_linked_device_functions"]
    static DEVICE_FUNCTIONS: DeviceFunctions;
}

pub(super) fn functions() -> Functions {
    // SAFETY: a constant array of function pointers in the order and number of the table's fields: both are
    // made from the same list, and a null pointer is `None`. Nothing writes it.
    unsafe { FUNCTIONS }
}

pub(super) fn device_functions() -> DeviceFunctions {
    // SAFETY: as above.
    unsafe { DEVICE_FUNCTIONS }
}

//! Linking at build time.

use crate::sys::Functions;
use crate::sys::device::DeviceFunctions;

unsafe extern "C" {
    /// The table that `build.rs` compiles from C. It has weak references to functions newer than NCCL 2.13.4, which
    /// are null if the library lacks them; a table written in Rust would require all of them when the program starts.
    #[link_name = "libnccl_linked_functions"]
    static FUNCTIONS: Functions;
    #[link_name = "libnccl_linked_device_functions"]
    static DEVICE_FUNCTIONS: DeviceFunctions;
}

pub(super) fn functions() -> Functions {
    // SAFETY: a constant array of function pointers, as many and in the same order as the table's fields: both are
    // generated from the same list, and a null pointer is `None`. Nothing writes to it.
    unsafe { FUNCTIONS }
}

pub(super) fn device_functions() -> DeviceFunctions {
    // SAFETY: as above.
    unsafe { DEVICE_FUNCTIONS }
}

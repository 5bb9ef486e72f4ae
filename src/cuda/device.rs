//! CUDA devices, by their numbers, from the driver.

use std::ffi::{c_int, c_void};

use super::driver::driver_function;

type GetDevice = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetAttribute = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;

/// Returns the device of the calling thread's context; `None` if it has none, or if the process has not loaded the driver.
pub(crate) fn current_device() -> Option<i32> {
    let get = driver_function(c"cuCtxGetDevice")?;
    // SAFETY: the driver's function of this name has this signature.
    let get = unsafe { std::mem::transmute::<*const c_void, GetDevice>(get) };
    let mut device = -1;
    // SAFETY: a valid out-parameter.
    (unsafe { get(&raw mut device) } == 0).then_some(device)
}

/// Returns the device of the memory at an address; `None` if the driver does not know it, or is not loaded.
pub(crate) fn device_of_memory(address: *const c_void) -> Option<i32> {
    const DEVICE_ORDINAL: c_int = 9;
    let get = driver_function(c"cuPointerGetAttribute")?;
    // SAFETY: the driver's function of this name has this signature.
    let get = unsafe { std::mem::transmute::<*const c_void, GetAttribute>(get) };
    let mut device: c_int = -1;
    // SAFETY: an out-parameter of the attribute's type; the driver does not access the memory at the address.
    let code = unsafe { get((&raw mut device).cast(), DEVICE_ORDINAL, address.addr() as u64) };
    (code == 0 && device >= 0).then_some(device)
}

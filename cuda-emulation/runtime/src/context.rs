//! The current device of each thread, and the primary contexts behind the devices.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::CUcontext;

use crate::driver::{self, Driver};
use crate::status::Result;

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
    /// The context that this library last made current, and `RESETS` at that time.
    static BOUND: Cell<(CUcontext, u64)> = const { Cell::new((null_mut(), 0)) };
}

/// The number of resets of devices. A context that became current before the last reset may be destroyed.
static RESETS: AtomicU64 = AtomicU64::new(0);

/// The addresses of the primary contexts that this library has retained, by device.
static PRIMARIES: Mutex<BTreeMap<c_int, usize>> = Mutex::new(BTreeMap::new());

/// Returns the primary context of a device, which the first call retains.
pub(crate) fn primary(driver: &Driver, device: c_int) -> Result<CUcontext> {
    let mut primaries = PRIMARIES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&address) = primaries.get(&device) {
        return Ok(with_exposed_provenance_mut(address));
    }
    let mut context = null_mut();
    // SAFETY: `context` is valid for a write; the driver checks the device.
    unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, device)? };
    primaries.insert(device, context.expose_provenance());
    Ok(context)
}

/// Returns whether the thread has a current context that has not been reset.
fn has_context(driver: &Driver) -> Result<bool> {
    let mut context = null_mut();
    // SAFETY: `context` is valid for a write.
    unsafe { driver.cuCtxGetCurrent(&raw mut context)? };
    let (bound, resets) = BOUND.get();
    let was_reset = context == bound && resets != RESETS.load(Ordering::Acquire);
    Ok(!context.is_null() && !was_reset)
}

/// Returns the driver, with a current context for the calling thread: the program's own, or the primary context of the thread's
/// device.
pub(crate) fn bind() -> Result<&'static Driver> {
    let driver = driver::get()?;
    if !has_context(driver)? {
        make_current(driver, DEVICE.get())?;
    }
    Ok(driver)
}

fn make_current(driver: &Driver, device: c_int) -> Result<()> {
    // Read first, so that a concurrent reset is noticed.
    let resets = RESETS.load(Ordering::Acquire);
    let context = primary(driver, device)?;
    // SAFETY: this library has retained the context.
    unsafe { driver.cuCtxSetCurrent(context)? };
    BOUND.set((context, resets));
    Ok(())
}

pub(crate) fn set_device(device: c_int) -> Result<()> {
    make_current(driver::get()?, device)?;
    DEVICE.set(device);
    Ok(())
}

/// Returns the device of the thread's current context, or the device that the thread has set.
pub(crate) fn device() -> Result<c_int> {
    let driver = driver::get()?;
    if !has_context(driver)? {
        return Ok(DEVICE.get());
    }
    let mut device = 0;
    // SAFETY: `device` is valid for a write.
    unsafe { driver.cuCtxGetDevice(&raw mut device)? };
    Ok(device)
}

/// Destroys everything on the thread's device. The next call that needs its context creates a new one.
pub(crate) fn reset() -> Result<()> {
    let driver = driver::get()?;
    let device = device()?;
    let mut primaries = PRIMARIES.lock().unwrap_or_else(PoisonError::into_inner);
    if primaries.contains_key(&device) {
        // SAFETY: this library retained the context, and removes it from its map.
        unsafe { driver.cuDevicePrimaryCtxRelease_v2(device)? };
        primaries.remove(&device);
    }
    // SAFETY: the caller no longer uses anything on the device.
    unsafe { driver.cuDevicePrimaryCtxReset_v2(device)? };
    RESETS.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

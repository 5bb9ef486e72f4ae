//! The devices, as the emulated driver describes them.
//!
//! Describing the devices does not initialize CUDA: a process that counts them may fork and use CUDA in its children.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_common::{Device, Interface, open_driver};

use crate::status::{Result, Status};

pub(crate) struct Driver {
    interface: &'static Interface,
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
}

impl Driver {
    fn load() -> Option<Self> {
        let library = open_driver()?;
        // SAFETY: CUDA's function has this type.
        let version = *unsafe { library.get(b"cuDriverGetVersion\0") }.ok()?;
        // SAFETY: the library is never unloaded.
        let interface = unsafe { Interface::of(library.into_raw()) };
        let interface = interface.unwrap_or_else(|error| {
            eprintln!("libnccl: libnvidia-ml.so.1 cannot use the emulated driver, libcuda.so.1: {error}");
            None
        });
        Some(Self { interface: interface?, version })
    }

    /// Returns a device, or `None` if there is none with this index.
    pub(crate) fn device(&self, index: usize) -> Result<Option<Device>> {
        const INVALID_DEVICE: u32 = 101;
        let mut device =
            Device { name: [0; 64], uuid: [0; 16], bus: 0, capability: [0; 2], total: 0, free: 0 };
        let index = c_int::try_from(index).map_err(|_| Status::INVALID_ARGUMENT)?;
        // SAFETY: a variable can be written.
        match unsafe { (self.interface.describe)(index, &raw mut device) } {
            0 => Ok(Some(device)),
            INVALID_DEVICE => Ok(None),
            // The driver has reported on stderr which setting is invalid.
            _ => Err(Status::UNKNOWN),
        }
    }

    pub(crate) fn devices(&self) -> Result<Vec<Device>> {
        (0..).map(|index| self.device(index)).map_while(Result::transpose).collect()
    }

    pub(crate) fn version(&self) -> Result<c_int> {
        let mut version = 0;
        // SAFETY: a variable can be written.
        let code = unsafe { (self.version)(&raw mut version) };
        if code == 0 { Ok(version) } else { Err(Status::UNKNOWN) }
    }
}

/// The number of initializations without a shutdown.
static INITIALIZATIONS: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn get() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER.get_or_init(Driver::load).as_ref().ok_or(Status::DRIVER_NOT_LOADED)
}

/// Returns the driver, if the library is initialized.
pub(crate) fn initialized() -> Result<&'static Driver> {
    if INITIALIZATIONS.load(Ordering::Relaxed) == 0 {
        return Err(Status::UNINITIALIZED);
    }
    get()
}

pub(crate) fn initialize(needs_devices: bool) -> Result<()> {
    if get()?.device(0)?.is_none() && needs_devices {
        return Err(Status::GPU_NOT_FOUND);
    }
    INITIALIZATIONS.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn shut_down() -> Result<()> {
    let less = |count: usize| count.checked_sub(1);
    let changed = INITIALIZATIONS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    changed.map(drop).map_err(|_| Status::UNINITIALIZED)
}

//! CUDA contexts, devices and streams: the trait for contexts of other crates, and the driver, if the process has loaded it.
//! This crate neither links nor loads CUDA.
#![allow(unsafe_code)]

use std::error::Error as StdError;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use crate::error::Error;
use crate::sys::cudaStream_t;

/// A CUDA context of another crate. The features `cudarc` and `cuda-core` implement this trait for the contexts of the crates
/// with these names.
///
/// ```
/// use libnccl::Context;
/// use std::error::Error;
///
/// /// The primary context of a device, in some CUDA crate.
/// struct Device(usize);
///
/// impl Context for Device {
///     fn device(&self) -> usize {
///         self.0
///     }
///     fn make_current(&self) -> Result<(), Box<dyn Error>> {
///         // cudaSetDevice, for instance.
///         Ok(())
///     }
/// }
///
/// let nccl = libnccl_cpu::nccl();
/// let comm = nccl.communicator(1, 0, &nccl.unique_id()?).device(&Device(0)).init()?;
/// # Ok::<(), libnccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a CUDA context",
    label = "not a context",
    note = "contexts of the crates cudarc and cuda-core are, with the features of these names, and types that implement `Context`"
)]
pub trait Context {
    /// Returns the number of the CUDA device.
    fn device(&self) -> usize;

    /// Makes this the calling thread's current context.
    ///
    /// # Errors
    /// Returns an error if CUDA returns one.
    fn make_current(&self) -> Result<(), Box<dyn StdError>>;
}

impl<C: Context + ?Sized> Context for Arc<C> {
    fn device(&self) -> usize {
        (**self).device()
    }
    fn make_current(&self) -> Result<(), Box<dyn StdError>> {
        (**self).make_current()
    }
}

pub(crate) fn make_current(call: &'static str, context: &dyn Context) -> Result<(), Error> {
    context.make_current().map_err(|error| {
        let device = context.device();
        Error::usage(call, format!("the context of device {device} cannot be made current: {error}"))
    })
}

/// Returns a function of CUDA's driver, if the process has loaded it. The driver is never unloaded.
///
/// # Safety
/// `F` must be the type of a pointer to the driver's function of this name.
unsafe fn driver_function<F>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    #[cfg(target_os = "linux")]
    let address = crate::dynamic_linker::Scope::loaded(c"libcuda.so.1")?.address(name);
    #[cfg(not(target_os = "linux"))]
    let (address, _) = (std::ptr::null::<c_void>(), name);
    // SAFETY: a function of the driver, with the signature that the caller guarantees.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}

/// The current context of a thread, for another thread that works on its behalf.
///
/// NCCL restores the device that was current before a call. On a new thread, this is device 0. Since CUDA 12, restoring it
/// creates a context there, which takes device memory.
#[derive(Clone, Copy)]
pub(crate) struct CudaContext {
    context: *mut c_void,
    set_current: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: CUDA's contexts may be current on several threads.
unsafe impl Send for CudaContext {}

impl CudaContext {
    /// Returns the calling thread's context; `None` if it has none, or if the process has not loaded the driver.
    pub(crate) fn current() -> Option<Self> {
        type GetCurrent = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
        // SAFETY: the signatures of the driver's functions.
        let (get_current, set_current) = unsafe {
            (driver_function::<GetCurrent>(c"cuCtxGetCurrent")?, driver_function(c"cuCtxSetCurrent")?)
        };
        let mut context = std::ptr::null_mut();
        // SAFETY: a valid out-parameter.
        let code = unsafe { get_current(&raw mut context) };
        (code == 0 && !context.is_null()).then_some(Self { context, set_current })
    }

    pub(crate) fn make_current(self) {
        // SAFETY: it is current on another thread, which waits for this one. An error changes nothing.
        unsafe { (self.set_current)(self.context) };
    }
}

/// Returns the device of the calling thread's context; `None` if it has none, or if the process has not loaded the driver.
pub(crate) fn current_device() -> Option<i32> {
    type GetDevice = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: the signature of the driver's function.
    let get: GetDevice = unsafe { driver_function(c"cuCtxGetDevice") }?;
    let mut device = -1;
    // SAFETY: a valid out-parameter.
    (unsafe { get(&raw mut device) } == 0).then_some(device)
}

/// Returns the device of the memory at an address; `None` if it is not CUDA memory, or if the driver is not loaded.
pub(crate) fn device_of_memory(address: *const c_void) -> Option<i32> {
    type GetAttribute = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;
    const DEVICE_ORDINAL: c_int = 9;
    // SAFETY: the signature of the driver's function.
    let get: GetAttribute = unsafe { driver_function(c"cuPointerGetAttribute") }?;
    let mut device: c_int = -1;
    // SAFETY: an out-parameter of the attribute's type; the driver does not access the memory at the address.
    let code = unsafe { get((&raw mut device).cast(), DEVICE_ORDINAL, address.addr() as u64) };
    (code == 0 && device >= 0).then_some(device)
}

/// Returns whether all work on a stream is complete. Returns an error if the process has not loaded the driver, or if the driver
/// returns one.
///
/// # Safety
/// The stream must be null or live.
pub(crate) unsafe fn is_stream_complete(stream: cudaStream_t) -> Result<bool, Box<dyn StdError>> {
    type Query = unsafe extern "C" fn(*mut c_void) -> c_int;
    const SUCCESS: c_int = 0;
    const NOT_READY: c_int = 600;
    // SAFETY: the signature of the driver's function.
    let query: Option<Query> = unsafe { driver_function(c"cuStreamQuery") };
    let query = query.ok_or("the process has not loaded CUDA's driver")?;
    // SAFETY: the caller guarantees it.
    match unsafe { query(stream.cast()) } {
        SUCCESS => Ok(true),
        NOT_READY => Ok(false),
        code => {
            let reason = emulated_failure(stream).map_or_else(String::new, |reason| format!(": {reason}"));
            Err(format!("cuStreamQuery returned {code}{reason}").into())
        }
    }
}

/// Returns why calls with a stream fail, if the driver is the CUDA emulation and an NCCL operation is the cause.
fn emulated_failure(stream: cudaStream_t) -> Option<String> {
    type Failure = unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> c_int;
    // SAFETY: the signature of the emulation's function; no other driver has a function of this name.
    let failure: Failure = unsafe { driver_function(c"libnccl_cuda_failure") }?;
    let mut text = [0_u8; 4096];
    // SAFETY: a buffer of this length.
    let code = unsafe { failure(stream.cast(), text.as_mut_ptr().cast(), text.len()) };
    let text = CStr::from_bytes_until_nul(&text).ok().filter(|text| code == 0 && !text.is_empty())?;
    Some(text.to_string_lossy().into_owned())
}

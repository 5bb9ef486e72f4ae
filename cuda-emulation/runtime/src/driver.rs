//! The driver, looked up in `libcuda.so.1`.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cuda_common::open_driver;
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUdriverProcAddressQueryResult,
    CUmem_advise, CUmemLocation, CUmemLocationType, CUpointer_attribute, CUstream, CUuuid,
};
use cudarc::runtime::sys::cudaError;
use libloading::os::unix::Library;

use crate::link_map::is_only_preloaded;
use crate::status::{Result, Status};

// `NAMES` and `Index`: the names of the driver's functions, and their places.
include!(concat!(env!("OUT_DIR"), "/driver_names.rs"));

/// The driver's functions, in the order of `NAMES`. The library stays loaded.
///
/// All are looked up together: a lookup takes the dynamic linker's lock, which another thread may hold while it waits for
/// this one, such as in the constructor of a library.
pub(crate) struct Driver([Option<unsafe extern "C" fn()>; NAMES.len()]);

impl Driver {
    fn look_up(library: &Library) -> Self {
        // SAFETY: functions of the driver; `call!` converts each to its type before the call.
        Self(NAMES.map(|name| unsafe { library.get(name.to_bytes_with_nul()) }.ok().map(|symbol| *symbol)))
    }

    pub(crate) fn function(&self, index: Index) -> Option<unsafe extern "C" fn()> {
        self.0[index as usize]
    }
}

/// Returns the driver, which the first call loads and initializes.
pub(crate) fn get() -> Result<&'static Driver> {
    static INITIALIZED: OnceLock<Result<()>> = OnceLock::new();
    let driver = loaded()?;
    // SAFETY: cuInit may be called at any time, any number of times.
    (*INITIALIZED.get_or_init(|| unsafe { driver.cuInit(0) }))?;
    Ok(driver)
}

/// Returns the driver, which the first call loads, for functions that work before it is initialized.
pub(crate) fn loaded() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    Ok(DRIVER
        .get_or_init(|| {
            let library = open_driver()?;
            let driver = Driver::look_up(&library);
            // Stays loaded.
            std::mem::forget(library);
            Some(driver)
        })
        .as_ref()
        .ok_or(cudaError::cudaErrorInsufficientDriver)?)
}

/// Loads the driver together with this library, without initializing it. NCCL checks in its first call whether the process has
/// the driver, and that may be before any call of this library. If this library is only preloaded, the driver is not loaded:
/// NCCL's buffers are then in host memory, unless the program calls CUDA first.
extern "C" fn load() {
    if !is_only_preloaded() {
        // Stays loaded.
        std::mem::forget(open_driver());
    }
}

#[used]
// The dynamic linker calls a function of this section once, after the initializers of the libraries that this one needs.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// `CUmemLocation` as C passes it: its type may be any number.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    kind: c_uint,
    id: c_int,
}

impl Location {
    const DEVICE: c_uint = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint;
    #[cfg(feature = "cuda-12")]
    const HOST: c_uint = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST as c_uint;
    const LAST: c_uint = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT as c_uint;

    pub(crate) fn checked(self) -> Result<Self> {
        if (Self::DEVICE..=Self::LAST).contains(&self.kind) { Ok(self) } else { Err(Status::INVALID_VALUE) }
    }

    /// Returns the location of a device, or of the host for -1.
    #[cfg(feature = "cuda-12")]
    pub(crate) fn of_device(device: c_int) -> Self {
        if device == -1 { Self { kind: Self::HOST, id: 0 } } else { Self { kind: Self::DEVICE, id: device } }
    }
}

/// Defines methods of the driver that call the function of their name.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty $(=> $declared:ty)?),* $(,)?);)*) => {
        impl Driver {$(
            /// # Safety
            /// The caller must meet the requirements that NVIDIA documents for this function.
            #[allow(clippy::too_many_arguments, reason = "as many as the function has")]
            pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> Result<()> {
                call!(self, $name($($argument: $type $(=> $declared)?),*))
            }
        )*}
    };
}

functions! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuGetProcAddress_v2(
        symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64,
        status: *mut c_uint => *mut CUdriverProcAddressQueryResult,
    );
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint => CUdevice_attribute, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice);
    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
    fn cuCtxDisablePeerAccess(peer: CUcontext);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
    fn cuMemAllocManaged(address: *mut CUdeviceptr, size: usize, flags: c_uint);
    fn cuMemHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint);
    fn cuMemAllocAsync(address: *mut CUdeviceptr, size: usize, stream: CUstream);
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    fn cuMemPrefetchAsync_v2(
        address: CUdeviceptr, size: usize, location: Location => CUmemLocation, flags: c_uint, stream: CUstream,
    );
    fn cuMemAdvise_v2(
        address: CUdeviceptr, size: usize, advice: c_uint => CUmem_advise, location: Location => CUmemLocation,
    );
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint => CUpointer_attribute, address: CUdeviceptr);
    fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, size: usize);
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, size: usize);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, size: usize);
    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize);
    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream);
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream);
    fn cuMemcpyPeer(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, size: usize,
    );
    fn cuMemcpyPeerAsync(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, size: usize,
        stream: CUstream,
    );
    fn cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D);
    fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
    fn cuMemsetD8_v2(address: CUdeviceptr, value: u8, size: usize);
    fn cuMemsetD8Async(address: CUdeviceptr, value: u8, size: usize, stream: CUstream);
    fn cuMemsetD2D8_v2(address: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize);
    fn cuMemsetD2D8Async(
        address: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream,
    );
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
}

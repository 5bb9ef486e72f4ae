//! The driver API, looked up in `libcuda.so.1`.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

use cuda_common::{advice, open_driver};
use cudarc::driver::sys;
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphEdgeData, CUgraphExec,
    CUgraphNode, CUhostFn, CUipcEventHandle, CUipcMemHandle, CUmemAccessDesc, CUmemLocation, CUmemPoolProps,
    CUmemoryPool, CUstream, CUstreamCallback, CUuserObject, CUuuid,
};
use cudarc::runtime::sys::cudaError;
use libloading::os::unix::Library;

use crate::link_map::is_only_preloaded;
use crate::status::{Result, Status};

/// Returns the driver, which is loaded and initialised by the first call.
pub(crate) fn get() -> Result<&'static Driver> {
    static INITIALISED: OnceLock<Result<()>> = OnceLock::new();
    let driver = loaded()?;
    // SAFETY: cuInit may be called at any time, any number of times.
    (*INITIALISED.get_or_init(|| unsafe { driver.cuInit(0) }))?;
    Ok(driver)
}

/// Returns the driver, which is loaded by the first call, for functions that it has before it is initialised.
pub(crate) fn loaded() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| open_driver().map(Driver::look_up));
    Ok(driver.as_ref().ok_or(cudaError::cudaErrorInsufficientDriver)?)
}

/// Loads the driver together with this library, and initialises nothing. NCCL asks whether the process has the driver
/// when it is first called, which may be before any function of this library. But a library that is preloaded whatever the
/// program is says nothing of it: NCCL's buffers are in host memory then, unless the program calls CUDA first.
extern "C" fn load() {
    if is_only_preloaded() {
        return;
    }
    if let Some(library) = open_driver() {
        // Stays loaded.
        std::mem::forget(library);
    }
}

#[used]
// The dynamic linker calls a function of this section once, after the initialisers of what this library needs.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// Says once for each function that it is not there, and returns the error.
pub(crate) fn not_supported(function: &'static str, reason: &str) -> Status {
    static SAID: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(function) {
        let message =
            format!("libnccl's libcudart: {function} is not supported{reason}{}\n", advice(function));
        let _ = std::io::stderr().write_all(message.as_bytes()); // In one piece; if stderr is closed, it is lost.
    }
    Status::NOT_SUPPORTED
}

/// The declarations of the driver API. CUDA 13's lack the old name of a function, which newer drivers still have.
mod declared {
    #[cfg(feature = "cuda-13")]
    pub(super) use cudarc::driver::sys::cuEventElapsedTime_v2 as cuEventElapsedTime;

    pub(super) use cudarc::driver::sys::*;
}

macro_rules! parameter {
    ($type:ty) => {
        $type
    };
    ($type:ty, $declared:ty) => {
        $declared
    };
}

/// Declares the table of the driver's functions. Where the driver declares an enum, a program may pass any number: the
/// enum stands behind `=>`.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty $(=> $declared:ty)?),* $(,)?);)*) => {
        /// The driver's functions; those that it lacks are not supported.
        #[derive(Debug)]
        pub(crate) struct Driver {
            $($name: Option<unsafe extern "C" fn($($type),*) -> Status>,)*
            _library: Library,
        }

        impl Driver {
            fn look_up(library: Library) -> Self {
                Self {
                    $(
                        // SAFETY: the function has the signature of the driver API (checked below).
                        $name: unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                            .ok()
                            .map(|symbol| *symbol),
                    )*
                    _library: library,
                }
            }

            $(
                /// Calls the function of this name.
                ///
                /// # Safety
                ///
                /// As NVIDIA documents it.
                #[allow(clippy::too_many_arguments, reason = "as many as the function has")]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> Result<()> {
                    let function = self
                        .$name
                        .ok_or_else(|| not_supported(stringify!($name), ": libcuda.so.1 lacks it"))?;
                    // SAFETY: the caller keeps the function's contract.
                    unsafe { function($($argument),*) }.result()
                }
            )*
        }

        // The signatures are those of cudarc's bindings.
        $(const _: unsafe fn($(parameter!($type $(, $declared)?)),*) -> sys::CUresult = declared::$name;)*
    };
}

functions! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuGetProcAddress_v2(
        symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64,
        status: *mut c_uint => *mut sys::CUdriverProcAddressQueryResult,
    );

    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint => sys::CUdevice_attribute, device: CUdevice);
    fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: CUdevice);
    fn cuDeviceGetByPCIBusId(device: *mut CUdevice, id: *const c_char);
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
    fn cuDeviceGetP2PAttribute(
        value: *mut c_int, attribute: c_uint => sys::CUdevice_P2PAttribute, source: CUdevice, destination: CUdevice,
    );
    fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool);

    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice);
    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxGetFlags(flags: *mut c_uint);
    fn cuCtxSynchronize();
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    fn cuCtxGetLimit(value: *mut usize, limit: c_uint => sys::CUlimit);
    fn cuCtxSetLimit(limit: c_uint => sys::CUlimit, value: usize);
    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
    fn cuCtxDisablePeerAccess(peer: CUcontext);

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
    fn cuMemAllocManaged(address: *mut CUdeviceptr, size: usize, flags: c_uint);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint);
    fn cuMemFreeHost(address: *mut c_void);
    fn cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: c_uint);
    fn cuMemHostUnregister(address: *mut c_void);
    fn cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, host: *mut c_void, flags: c_uint);
    fn cuMemHostGetFlags(flags: *mut c_uint, address: *mut c_void);
    fn cuMemAllocAsync(address: *mut CUdeviceptr, size: usize, stream: CUstream);
    fn cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream);
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    fn cuMemPrefetchAsync_v2(
        address: CUdeviceptr, size: usize, location: CUmemLocation, flags: c_uint, stream: CUstream,
    );
    fn cuMemAdvise_v2(
        address: CUdeviceptr, size: usize, advice: c_uint => sys::CUmem_advise, location: CUmemLocation,
    );
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint => sys::CUpointer_attribute, address: CUdeviceptr);
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr);
    fn cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
    fn cuIpcCloseMemHandle(address: CUdeviceptr);
    fn cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent);
    fn cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle);

    fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    fn cuMemPoolDestroy(pool: CUmemoryPool);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    fn cuMemPoolGetAttribute(
        pool: CUmemoryPool, attribute: c_uint => sys::CUmemPool_attribute, value: *mut c_void,
    );
    fn cuMemPoolSetAttribute(
        pool: CUmemoryPool, attribute: c_uint => sys::CUmemPool_attribute, value: *mut c_void,
    );
    fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
    fn cuMemPoolGetAccess(
        access: *mut c_uint => *mut sys::CUmemAccess_flags, pool: CUmemoryPool, location: *mut CUmemLocation,
    );

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

    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamAddCallback(stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: c_uint);
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);
    fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
    fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
    fn cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    fn cuStreamAttachMemAsync(stream: CUstream, address: CUdeviceptr, size: usize, flags: c_uint);

    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);

    fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint => sys::CUstreamCaptureMode);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint => *mut sys::CUstreamCaptureStatus);
    fn cuStreamGetCaptureInfo_v3(
        stream: CUstream,
        status: *mut c_uint => *mut sys::CUstreamCaptureStatus,
        id: *mut u64,
        graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode,
        edges: *mut *const CUgraphEdgeData,
        count: *mut usize,
    );
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint => *mut sys::CUstreamCaptureMode);
    fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    fn cuGraphUpload(executable: CUgraphExec, stream: CUstream);
    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(executable: CUgraphExec);
    fn cuUserObjectCreate(
        object: *mut CUuserObject, data: *mut c_void, destroy: CUhostFn, count: c_uint, flags: c_uint,
    );
    fn cuUserObjectRetain(object: CUuserObject, count: c_uint);
    fn cuUserObjectRelease(object: CUuserObject, count: c_uint);
    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);
    fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint);
}

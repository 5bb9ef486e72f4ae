//! Status codes, their names and descriptions, and the last error of each thread.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

use cudarc::driver::sys::CUresult;
use cudarc::runtime::sys::cudaError;

/// A `cudaError_t`, which need not be one of `CODES`.
///
/// If the driver has the same error, its `CUresult` has the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(pub(crate) u32);

pub(crate) type Result<T> = std::result::Result<T, Status>;

impl Status {
    pub(crate) const SUCCESS: Self = Self(cudaError::cudaSuccess as u32);
    pub(crate) const INVALID_VALUE: Self = Self(cudaError::cudaErrorInvalidValue as u32);
    pub(crate) const NOT_READY: Self = Self(cudaError::cudaErrorNotReady as u32);
    pub(crate) const NOT_SUPPORTED: Self = Self(cudaError::cudaErrorNotSupported as u32);

    pub(crate) fn result(self) -> Result<()> {
        if self == Self::SUCCESS { Ok(()) } else { Err(self) }
    }
}

impl From<cudaError> for Status {
    fn from(error: cudaError) -> Self {
        Self(error as u32)
    }
}

// Driver and runtime have the same numbers where this library relies on it.
const _: () = {
    assert!(CUresult::CUDA_ERROR_NO_DEVICE as u32 == cudaError::cudaErrorNoDevice as u32);
    assert!(CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 == cudaError::cudaErrorMemoryAllocation as u32);
    assert!(CUresult::CUDA_ERROR_INVALID_HANDLE as u32 == cudaError::cudaErrorInvalidResourceHandle as u32);
    assert!(CUresult::CUDA_ERROR_NOT_READY as u32 == cudaError::cudaErrorNotReady as u32);
    assert!(CUresult::CUDA_ERROR_NOT_SUPPORTED as u32 == cudaError::cudaErrorNotSupported as u32);
};

/// The name and the description of any other code.
const UNKNOWN: &CStr = c"unrecognized error code";

/// The codes of CUDA 12.9 and 13.5 with their names and descriptions.
const CODES: &[(u32, &CStr, &CStr)] = &[
    (0, c"cudaSuccess", c"no error"),
    (1, c"cudaErrorInvalidValue", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"initialization error"),
    (4, c"cudaErrorCudartUnloading", c"driver shutting down"),
    (5, c"cudaErrorProfilerDisabled", c"profiler disabled"),
    (6, c"cudaErrorProfilerNotInitialized", c"profiler not initialized"),
    (7, c"cudaErrorProfilerAlreadyStarted", c"profiler already started"),
    (8, c"cudaErrorProfilerAlreadyStopped", c"profiler already stopped"),
    (9, c"cudaErrorInvalidConfiguration", c"invalid launch configuration"),
    (10, c"cudaErrorVersionTranslation", c"layouts of two versions cannot be translated"),
    (12, c"cudaErrorInvalidPitchValue", c"invalid pitch"),
    (13, c"cudaErrorInvalidSymbol", c"invalid device symbol"),
    (16, c"cudaErrorInvalidHostPointer", c"invalid host pointer"),
    (17, c"cudaErrorInvalidDevicePointer", c"invalid device pointer"),
    (18, c"cudaErrorInvalidTexture", c"invalid texture reference"),
    (19, c"cudaErrorInvalidTextureBinding", c"texture not bound"),
    (20, c"cudaErrorInvalidChannelDescriptor", c"invalid channel descriptor"),
    (21, c"cudaErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy"),
    (22, c"cudaErrorAddressOfConstant", c"address of a constant"),
    (23, c"cudaErrorTextureFetchFailed", c"texture fetch failed"),
    (24, c"cudaErrorTextureNotBound", c"texture not bound to a pointer"),
    (25, c"cudaErrorSynchronizationError", c"synchronization failed"),
    (26, c"cudaErrorInvalidFilterSetting", c"linear filtering of non-float type"),
    (27, c"cudaErrorInvalidNormSetting", c"normalized read of 32-bit or non-integer type"),
    (28, c"cudaErrorMixedDeviceExecution", c"device emulation mixed with execution on a device"),
    (31, c"cudaErrorNotYetImplemented", c"function not yet implemented"),
    (32, c"cudaErrorMemoryValueTooLarge", c"memory size or address too large"),
    (34, c"cudaErrorStubLibrary", c"stub library in place of the driver"),
    (35, c"cudaErrorInsufficientDriver", c"CUDA driver version is insufficient for CUDA runtime version"),
    (36, c"cudaErrorCallRequiresNewerDriver", c"function requires a newer driver"),
    (37, c"cudaErrorInvalidSurface", c"invalid surface reference"),
    (43, c"cudaErrorDuplicateVariableName", c"several global variables share one name"),
    (44, c"cudaErrorDuplicateTextureName", c"several textures share one name"),
    (45, c"cudaErrorDuplicateSurfaceName", c"several surfaces share one name"),
    (46, c"cudaErrorDevicesUnavailable", c"all devices busy or unavailable"),
    (49, c"cudaErrorIncompatibleDriverContext", c"driver context incompatible with the runtime"),
    (52, c"cudaErrorMissingConfiguration", c"kernel launch without configuration"),
    (53, c"cudaErrorPriorLaunchFailure", c"an earlier launch failed"),
    (65, c"cudaErrorLaunchMaxDepthExceeded", c"launch nested too deeply"),
    (66, c"cudaErrorLaunchFileScopedTex", c"file-scoped textures not supported in a nested launch"),
    (67, c"cudaErrorLaunchFileScopedSurf", c"file-scoped surfaces not supported in a nested launch"),
    (68, c"cudaErrorSyncDepthExceeded", c"synchronization nested too deeply"),
    (69, c"cudaErrorLaunchPendingCountExceeded", c"too many launches pending"),
    (98, c"cudaErrorInvalidDeviceFunction", c"invalid device function"),
    (100, c"cudaErrorNoDevice", c"no CUDA-capable device is detected"),
    (101, c"cudaErrorInvalidDevice", c"invalid device ordinal"),
    (102, c"cudaErrorDeviceNotLicensed", c"device not licensed"),
    (103, c"cudaErrorSoftwareValidityNotEstablished", c"software integrity not established"),
    (127, c"cudaErrorStartupFailure", c"startup failure"),
    (200, c"cudaErrorInvalidKernelImage", c"invalid kernel image"),
    (201, c"cudaErrorDeviceUninitialized", c"invalid device context"),
    (205, c"cudaErrorMapBufferObjectFailed", c"mapping of buffer object failed"),
    (206, c"cudaErrorUnmapBufferObjectFailed", c"unmapping of buffer object failed"),
    (207, c"cudaErrorArrayIsMapped", c"array is mapped"),
    (208, c"cudaErrorAlreadyMapped", c"resource already mapped"),
    (209, c"cudaErrorNoKernelImageForDevice", c"no kernel image for this device"),
    (210, c"cudaErrorAlreadyAcquired", c"resource already acquired"),
    (211, c"cudaErrorNotMapped", c"resource not mapped"),
    (212, c"cudaErrorNotMappedAsArray", c"resource not mapped as array"),
    (213, c"cudaErrorNotMappedAsPointer", c"resource not mapped as pointer"),
    (214, c"cudaErrorECCUncorrectable", c"uncorrectable ECC error"),
    (215, c"cudaErrorUnsupportedLimit", c"limit not supported"),
    (216, c"cudaErrorDeviceAlreadyInUse", c"device used by another thread"),
    (217, c"cudaErrorPeerAccessUnsupported", c"peer access not supported between these devices"),
    (218, c"cudaErrorInvalidPtx", c"invalid PTX"),
    (219, c"cudaErrorInvalidGraphicsContext", c"invalid graphics context"),
    (220, c"cudaErrorNvlinkUncorrectable", c"uncorrectable NVLink error"),
    (221, c"cudaErrorJitCompilerNotFound", c"PTX compiler not found"),
    (222, c"cudaErrorUnsupportedPtxVersion", c"PTX version not supported"),
    (223, c"cudaErrorJitCompilationDisabled", c"PTX compilation disabled"),
    (224, c"cudaErrorUnsupportedExecAffinity", c"execution affinity not supported"),
    (225, c"cudaErrorUnsupportedDevSideSync", c"synchronization on the device not supported"),
    (226, c"cudaErrorContained", c"contained error"),
    (227, c"cudaErrorInsufficientLoaderVersion", c"loader too old"),
    (300, c"cudaErrorInvalidSource", c"invalid kernel source"),
    (301, c"cudaErrorFileNotFound", c"file not found"),
    (302, c"cudaErrorSharedObjectSymbolNotFound", c"symbol of a shared object not found"),
    (303, c"cudaErrorSharedObjectInitFailed", c"initialization of a shared object failed"),
    (304, c"cudaErrorOperatingSystem", c"operating system call failed"),
    (400, c"cudaErrorInvalidResourceHandle", c"invalid resource handle"),
    (401, c"cudaErrorIllegalState", c"resource in an illegal state"),
    (402, c"cudaErrorLossyQuery", c"query would lose information"),
    (500, c"cudaErrorSymbolNotFound", c"named symbol not found"),
    (600, c"cudaErrorNotReady", c"device not ready"),
    (700, c"cudaErrorIllegalAddress", c"an illegal memory access was encountered"),
    (701, c"cudaErrorLaunchOutOfResources", c"too many resources requested for launch"),
    (702, c"cudaErrorLaunchTimeout", c"the launch timed out and was terminated"),
    (703, c"cudaErrorLaunchIncompatibleTexturing", c"launch with incompatible texturing mode"),
    (704, c"cudaErrorPeerAccessAlreadyEnabled", c"peer access is already enabled"),
    (705, c"cudaErrorPeerAccessNotEnabled", c"peer access has not been enabled"),
    (708, c"cudaErrorSetOnActiveProcess", c"device already in use by this process"),
    (709, c"cudaErrorContextIsDestroyed", c"context is destroyed"),
    (710, c"cudaErrorAssert", c"device-side assert triggered"),
    (711, c"cudaErrorTooManyPeers", c"peer access to too many devices"),
    (712, c"cudaErrorHostMemoryAlreadyRegistered", c"host memory already registered"),
    (713, c"cudaErrorHostMemoryNotRegistered", c"host memory not registered"),
    (714, c"cudaErrorHardwareStackError", c"hardware stack error"),
    (715, c"cudaErrorIllegalInstruction", c"illegal instruction"),
    (716, c"cudaErrorMisalignedAddress", c"misaligned address"),
    (717, c"cudaErrorInvalidAddressSpace", c"address in another address space"),
    (718, c"cudaErrorInvalidPc", c"invalid program counter"),
    (719, c"cudaErrorLaunchFailure", c"unspecified launch failure"),
    (720, c"cudaErrorCooperativeLaunchTooLarge", c"too many blocks in cooperative launch"),
    (721, c"cudaErrorTensorMemoryLeak", c"tensor memory not freed"),
    (800, c"cudaErrorNotPermitted", c"operation not permitted"),
    (801, c"cudaErrorNotSupported", c"operation not supported"),
    (802, c"cudaErrorSystemNotReady", c"system not ready"),
    (803, c"cudaErrorSystemDriverMismatch", c"driver version does not fit the other system components"),
    (804, c"cudaErrorCompatNotSupportedOnDevice", c"forward compatibility not supported on this device"),
    (805, c"cudaErrorMpsConnectionFailed", c"MPS client cannot connect"),
    (806, c"cudaErrorMpsRpcFailure", c"MPS remote procedure call failed"),
    (807, c"cudaErrorMpsServerNotReady", c"MPS server not ready"),
    (808, c"cudaErrorMpsMaxClientsReached", c"too many MPS clients"),
    (809, c"cudaErrorMpsMaxConnectionsReached", c"too many MPS connections"),
    (810, c"cudaErrorMpsClientTerminated", c"MPS client terminated"),
    (811, c"cudaErrorCdpNotSupported", c"dynamic parallelism not supported"),
    (812, c"cudaErrorCdpVersionMismatch", c"versions of dynamic parallelism differ"),
    (900, c"cudaErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing"),
    (901, c"cudaErrorStreamCaptureInvalidated", c"capture invalidated by an earlier error"),
    (902, c"cudaErrorStreamCaptureMerge", c"capture would merge two captures"),
    (903, c"cudaErrorStreamCaptureUnmatched", c"capture not begun in this stream"),
    (904, c"cudaErrorStreamCaptureUnjoined", c"capture ended with unjoined work"),
    (905, c"cudaErrorStreamCaptureIsolation", c"dependency on uncaptured work in a capturing stream"),
    (906, c"cudaErrorStreamCaptureImplicit", c"implicit dependency of the legacy stream on a capture"),
    (
        907,
        c"cudaErrorCapturedEvent",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (908, c"cudaErrorStreamCaptureWrongThread", c"capture ended by another thread"),
    (909, c"cudaErrorTimeout", c"wait timed out"),
    (910, c"cudaErrorGraphExecUpdateFailure", c"graph update refused"),
    (911, c"cudaErrorExternalDevice", c"device outside the process failed"),
    (912, c"cudaErrorInvalidClusterSize", c"invalid cluster size"),
    (913, c"cudaErrorFunctionNotLoaded", c"function not loaded"),
    (914, c"cudaErrorInvalidResourceType", c"invalid resource type"),
    (915, c"cudaErrorInvalidResourceConfiguration", c"invalid resource configuration"),
    (917, c"cudaErrorStreamDetached", c"stream detached"),
    (918, c"cudaErrorGraphRecaptureFailure", c"graph recapture failed"),
    (919, c"cudaErrorFabricNotReady", c"fabric not ready"),
    (999, c"cudaErrorUnknown", c"unknown error"),
    (10000, c"cudaErrorApiFailureBase", c"API failure base"),
];

/// Writes a result.
///
/// # Safety
/// `out` must be null or valid for a write.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: as the caller guarantees.
    unsafe { out.write(value) };
    Ok(())
}

thread_local! {
    pub(crate) static LAST: Cell<Status> = const { Cell::new(Status::SUCCESS) };
}

/// Returns the status of a call, and stores an error as the thread's last one. `NOT_READY` is no error.
pub(crate) fn record(result: Result<()>) -> Status {
    let status = result.err().unwrap_or(Status::SUCCESS);
    if ![Status::SUCCESS, Status::NOT_READY].contains(&status) {
        LAST.set(status);
    }
    status
}

fn code(status: Status) -> (&'static CStr, &'static CStr) {
    let found = CODES.iter().find(|(code, ..)| *code == status.0);
    found.map_or((UNKNOWN, UNKNOWN), |&(_, name, description)| (name, description))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(status: Status) -> *const c_char {
    code(status).0.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(status: Status) -> *const c_char {
    code(status).1.as_ptr()
}

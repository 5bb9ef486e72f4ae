//! Error codes, and messages on stderr.

use std::ffi::CStr;
use std::io::{self, Write};

use cudarc::driver::sys::CUresult;

pub(crate) type Result<T> = std::result::Result<T, CUresult>;

pub(crate) fn ensure(condition: bool, error: CUresult) -> Result<()> {
    if condition { Ok(()) } else { Err(error) }
}

/// Writes a message to stderr in one piece, so that messages of several processes do not mix. If stderr is closed, the message is
/// lost.
pub(crate) fn print(message: &str) {
    let _ = io::stderr().write_all(message.as_bytes());
}

macro_rules! errors {
    ($($name:ident $description:literal)*) => {
        const ERRORS: &[(CUresult, &str, &str)] =
            &[$((CUresult::$name, concat!(stringify!($name), "\0"), concat!($description, "\0"))),*];
    };
}

errors! {
    CUDA_SUCCESS "no error"
    CUDA_ERROR_INVALID_VALUE "invalid argument"
    CUDA_ERROR_OUT_OF_MEMORY "out of memory"
    CUDA_ERROR_NOT_INITIALIZED "the driver is not initialized"
    CUDA_ERROR_DEINITIALIZED "the driver is shutting down"
    CUDA_ERROR_PROFILER_DISABLED "the profiler is disabled"
    CUDA_ERROR_PROFILER_NOT_INITIALIZED "the profiler is not initialized"
    CUDA_ERROR_PROFILER_ALREADY_STARTED "the profiler is already started"
    CUDA_ERROR_PROFILER_ALREADY_STOPPED "the profiler is already stopped"
    CUDA_ERROR_STUB_LIBRARY "the driver is a stub library"
    CUDA_ERROR_DEVICE_UNAVAILABLE "the device is unavailable"
    CUDA_ERROR_NO_DEVICE "no device"
    CUDA_ERROR_INVALID_DEVICE "invalid device"
    CUDA_ERROR_DEVICE_NOT_LICENSED "the device is not licensed"
    CUDA_ERROR_INVALID_IMAGE "invalid device code"
    CUDA_ERROR_INVALID_CONTEXT "invalid context"
    CUDA_ERROR_CONTEXT_ALREADY_CURRENT "the context is already current"
    CUDA_ERROR_MAP_FAILED "mapping failed"
    CUDA_ERROR_UNMAP_FAILED "unmapping failed"
    CUDA_ERROR_ARRAY_IS_MAPPED "the array is mapped"
    CUDA_ERROR_ALREADY_MAPPED "already mapped"
    CUDA_ERROR_NO_BINARY_FOR_GPU "no code for this device"
    CUDA_ERROR_ALREADY_ACQUIRED "already acquired"
    CUDA_ERROR_NOT_MAPPED "not mapped"
    CUDA_ERROR_NOT_MAPPED_AS_ARRAY "not mapped as an array"
    CUDA_ERROR_NOT_MAPPED_AS_POINTER "not mapped as a pointer"
    CUDA_ERROR_ECC_UNCORRECTABLE "uncorrectable memory error"
    CUDA_ERROR_UNSUPPORTED_LIMIT "the limit is not supported"
    CUDA_ERROR_CONTEXT_ALREADY_IN_USE "the context is in use by another thread"
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED "peer access is not supported between these devices"
    CUDA_ERROR_INVALID_PTX "invalid PTX"
    CUDA_ERROR_INVALID_GRAPHICS_CONTEXT "invalid graphics context"
    CUDA_ERROR_NVLINK_UNCORRECTABLE "uncorrectable NVLink error"
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND "the PTX compiler was not found"
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION "the PTX version is not supported"
    CUDA_ERROR_JIT_COMPILATION_DISABLED "PTX compilation is disabled"
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY "the execution affinity is not supported"
    CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC "synchronization in device code is not supported"
    CUDA_ERROR_INVALID_SOURCE "invalid device source"
    CUDA_ERROR_FILE_NOT_FOUND "file not found"
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND "symbol of a shared object not found"
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED "a shared object failed to initialize"
    CUDA_ERROR_OPERATING_SYSTEM "a call of the operating system failed"
    CUDA_ERROR_INVALID_HANDLE "invalid handle"
    CUDA_ERROR_ILLEGAL_STATE "a resource is in a state that does not allow this"
    CUDA_ERROR_LOSSY_QUERY "the result would lose information"
    CUDA_ERROR_NOT_FOUND "name not found"
    CUDA_ERROR_NOT_READY "not complete yet"
    CUDA_ERROR_ILLEGAL_ADDRESS "illegal memory access on the device"
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES "too many resources requested for a launch"
    CUDA_ERROR_LAUNCH_TIMEOUT "a launch took too long"
    CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING "incompatible texturing of a launch"
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED "peer access is already enabled"
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED "peer access is not enabled"
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE "the primary context is active"
    CUDA_ERROR_CONTEXT_IS_DESTROYED "the context is destroyed"
    CUDA_ERROR_ASSERT "an assertion failed on the device"
    CUDA_ERROR_TOO_MANY_PEERS "too many peers"
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED "the host memory is already registered"
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED "the host memory is not registered"
    CUDA_ERROR_HARDWARE_STACK_ERROR "stack error on the device"
    CUDA_ERROR_ILLEGAL_INSTRUCTION "illegal instruction on the device"
    CUDA_ERROR_MISALIGNED_ADDRESS "misaligned address on the device"
    CUDA_ERROR_INVALID_ADDRESS_SPACE "invalid address space on the device"
    CUDA_ERROR_INVALID_PC "invalid program counter on the device"
    CUDA_ERROR_LAUNCH_FAILED "failure on the device"
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE "too many blocks for a cooperative launch"
    CUDA_ERROR_NOT_PERMITTED "not permitted"
    CUDA_ERROR_NOT_SUPPORTED "not supported"
    CUDA_ERROR_SYSTEM_NOT_READY "the system is not ready"
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH "the driver and the display driver do not match"
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE "forward compatibility is not supported on this device"
    CUDA_ERROR_MPS_CONNECTION_FAILED "no connection to the MPS control daemon"
    CUDA_ERROR_MPS_RPC_FAILURE "a call of the MPS server failed"
    CUDA_ERROR_MPS_SERVER_NOT_READY "the MPS server is not ready"
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED "too many clients of the MPS server"
    CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED "too many connections to the MPS server"
    CUDA_ERROR_MPS_CLIENT_TERMINATED "the MPS client was terminated"
    CUDA_ERROR_CDP_NOT_SUPPORTED "launches in device code are not supported"
    CUDA_ERROR_CDP_VERSION_MISMATCH "versions of launches in device code do not match"
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED "not supported while a stream is captured"
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED "the capture failed because of an earlier error"
    CUDA_ERROR_STREAM_CAPTURE_MERGE "two captures would be merged"
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED "the capture began in another stream"
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED "the capture left work that was not joined"
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION "an order with work outside the capture"
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT "an implicit order with the captured stream"
    CUDA_ERROR_CAPTURED_EVENT "the event was recorded in a capture"
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD "the capture began in another thread"
    CUDA_ERROR_TIMEOUT "timeout"
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE "the graph cannot be updated so"
    CUDA_ERROR_EXTERNAL_DEVICE "error of another device"
    CUDA_ERROR_INVALID_CLUSTER_SIZE "invalid cluster size"
    CUDA_ERROR_FUNCTION_NOT_LOADED "the function is not loaded"
    CUDA_ERROR_INVALID_RESOURCE_TYPE "invalid resource type"
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION "invalid resource configuration"
    CUDA_ERROR_UNKNOWN "unknown error"
}

fn entry(code: u32) -> Option<&'static (CUresult, &'static str, &'static str)> {
    ERRORS.iter().find(|(error, ..)| *error as u32 == code)
}

pub(crate) fn name(code: u32) -> Option<&'static CStr> {
    entry(code).and_then(|(_, name, _)| CStr::from_bytes_with_nul(name.as_bytes()).ok())
}

pub(crate) fn description(code: u32) -> Option<&'static CStr> {
    entry(code).and_then(|(_, _, text)| CStr::from_bytes_with_nul(text.as_bytes()).ok())
}

/// Returns the error with a code, or `CUDA_ERROR_UNKNOWN` for a code that CUDA does not have.
pub(crate) fn from_code(code: u32) -> CUresult {
    entry(code).map_or(CUresult::CUDA_ERROR_UNKNOWN, |(error, ..)| *error)
}

//! Streams, functions of the host in them, and events.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use cudarc::driver::sys::{CUdeviceptr, CUevent, CUhostFn, CUipcEventHandle, CUstream, CUstreamCallback};

use crate::context::bind;

/// The calling thread's own default stream, `cudaStreamPerThread`.
pub(crate) const PER_THREAD: CUstream = without_provenance_mut(2);

api! {
    fn cudaStreamCreate(stream: *mut CUstream) = cudaStreamCreateWithPriority(stream, 0, 0).result();

    fn cudaStreamCreateWithFlags(stream: *mut CUstream, flags: c_uint)
        = cudaStreamCreateWithPriority(stream, flags, 0).result();

    fn cudaStreamCreateWithPriority
        = bind().cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cudaStreamDestroy = bind().cuStreamDestroy_v2(stream: CUstream);
    per_thread(stream) fn cudaStreamQuery = bind().cuStreamQuery(stream: CUstream);
    per_thread(stream) fn cudaStreamSynchronize = bind().cuStreamSynchronize(stream: CUstream);
    per_thread(stream)
    fn cudaStreamWaitEvent = bind().cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    // The callback gets the driver's status, which has the same numbers.
    per_thread(stream) fn cudaStreamAddCallback = bind().cuStreamAddCallback(
        stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: c_uint,
    );
    per_thread(stream) fn cudaLaunchHostFunc
        = bind().cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);
    per_thread(stream) fn cudaStreamGetFlags = bind().cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
    per_thread(stream)
    fn cudaStreamGetPriority = bind().cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
    per_thread(stream) fn cudaStreamGetId = bind().cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
    per_thread(stream) fn cudaStreamAttachMemAsync = bind().cuStreamAttachMemAsync(
        stream: CUstream, address: CUdeviceptr, size: usize, flags: c_uint,
    );

    per_thread(stream) fn cudaStreamGetDevice(stream: CUstream, device: *mut c_int) {
        let driver = bind()?;
        let (mut own, mut context) = (null_mut(), null_mut());
        driver.cuCtxGetCurrent(&raw mut own)?;
        driver.cuStreamGetCtx(stream, &raw mut context)?;
        // The driver returns only the device of the current context.
        driver.cuCtxSetCurrent(context)?;
        let found = driver.cuCtxGetDevice(device);
        driver.cuCtxSetCurrent(own)?;
        found
    }

    fn cudaEventCreate(event: *mut CUevent) = cudaEventCreateWithFlags(event, 0).result();
    fn cudaEventCreateWithFlags = bind().cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cudaEventDestroy = bind().cuEventDestroy_v2(event: CUevent);
    fn cudaEventQuery = bind().cuEventQuery(event: CUevent);
    fn cudaEventSynchronize = bind().cuEventSynchronize(event: CUevent);
    per_thread(stream) fn cudaEventRecord = bind().cuEventRecord(event: CUevent, stream: CUstream);
    per_thread(stream) fn cudaEventRecordWithFlags
        = bind().cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint);
    #[cfg(feature = "cuda-12")]
    fn cudaEventElapsedTime = bind().cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    // `_v2` accepts other events, which the driver decides.
    #[cfg(feature = "cuda-12")]
    fn cudaEventElapsedTime_v2
        = bind().cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    #[cfg(feature = "cuda-13")]
    fn cudaEventElapsedTime
        = bind().cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cudaIpcGetEventHandle = bind().cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent);
    fn cudaIpcOpenEventHandle = bind().cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle);
}

//! Streams, host functions in them, events, and, as far as the driver supports them, captures and graphs.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use cudarc::driver::sys::{
    CUdeviceptr, CUevent, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode, CUhostFn, CUipcEventHandle,
    CUstream, CUstreamCallback, CUstreamCaptureMode, CUstreamCaptureStatus, CUuserObject,
};

use crate::context::bind;
use crate::driver::get;

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

    per_thread(stream) fn cudaStreamBeginCapture
        = bind().cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint => CUstreamCaptureMode);
    per_thread(stream)
    fn cudaStreamEndCapture = bind().cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    per_thread(stream) fn cudaStreamIsCapturing
        = bind().cuStreamIsCapturing(stream: CUstream, status: *mut c_uint => *mut CUstreamCaptureStatus);

    #[cfg(feature = "cuda-12")]
    per_thread(stream) fn cudaStreamGetCaptureInfo(stream: CUstream, status: *mut c_uint, id: *mut u64) {
        let (graph, nodes, edges, count) = (null_mut(), null_mut(), null_mut(), null_mut());
        cudaStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, edges, count).result()
    }

    #[cfg(feature = "cuda-12")]
    per_thread(stream) fn cudaStreamGetCaptureInfo_v2(
        stream: CUstream, status: *mut c_uint, id: *mut u64, graph: *mut CUgraph, nodes: *mut *const CUgraphNode,
        count: *mut usize,
    ) = cudaStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, null_mut(), count).result();

    #[cfg(feature = "cuda-12")]
    per_thread(stream) fn cudaStreamGetCaptureInfo_v3 = bind().cuStreamGetCaptureInfo_v3(
        stream: CUstream, status: *mut c_uint => *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode, edges: *mut *const CUgraphEdgeData, count: *mut usize,
    );
    #[cfg(feature = "cuda-13")]
    per_thread(stream) fn cudaStreamGetCaptureInfo = bind().cuStreamGetCaptureInfo_v3(
        stream: CUstream, status: *mut c_uint => *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode, edges: *mut *const CUgraphEdgeData, count: *mut usize,
    );
    fn cudaThreadExchangeStreamCaptureMode
        = get().cuThreadExchangeStreamCaptureMode(mode: *mut c_uint => *mut CUstreamCaptureMode);

    fn cudaGraphCreate = bind().cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
    fn cudaGraphDestroy = get().cuGraphDestroy(graph: CUgraph);
    fn cudaGraphGetNodes = get().cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    fn cudaGraphInstantiate = bind().cuGraphInstantiateWithFlags(
        executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong,
    );
    fn cudaGraphInstantiateWithFlags = bind().cuGraphInstantiateWithFlags(
        executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong,
    );
    per_thread(stream) fn cudaGraphUpload = bind().cuGraphUpload(executable: CUgraphExec, stream: CUstream);
    per_thread(stream) fn cudaGraphLaunch = bind().cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    fn cudaGraphExecDestroy = get().cuGraphExecDestroy(executable: CUgraphExec);

    fn cudaUserObjectCreate = get().cuUserObjectCreate(
        object: *mut CUuserObject, data: *mut c_void, destroy: CUhostFn, count: c_uint, flags: c_uint,
    );
    fn cudaUserObjectRetain = get().cuUserObjectRetain(object: CUuserObject, count: c_uint);
    fn cudaUserObjectRelease = get().cuUserObjectRelease(object: CUuserObject, count: c_uint);
    fn cudaGraphRetainUserObject = get().cuGraphRetainUserObject(
        graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint,
    );
    fn cudaGraphReleaseUserObject
        = get().cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint);
}

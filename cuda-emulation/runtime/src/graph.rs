//! Stream capture and graphs, as far as the driver supports them.

use std::ffi::{c_uint, c_ulonglong, c_void};
#[cfg(feature = "cuda-12")]
use std::ptr::null_mut;

use cudarc::driver::sys::{
    CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode, CUhostFn, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus, CUuserObject,
};

use crate::context::bind;
use crate::driver::get;

api! {
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
    ) {
        cudaStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, null_mut(), count).result()
    }

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

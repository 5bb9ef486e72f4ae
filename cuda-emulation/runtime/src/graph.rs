//! Capture of streams, and graphs, as far as the driver has them.

use std::ffi::{c_uint, c_ulonglong, c_void};
#[cfg(feature = "cuda-12")]
use std::ptr::null_mut;

use cudarc::runtime::sys::{
    cudaGraph_t, cudaGraphEdgeData, cudaGraphExec_t, cudaGraphNode_t, cudaHostFn_t, cudaStream_t,
    cudaUserObject_t,
};

use crate::context;
use crate::driver;

api! {
    per_thread(stream)
    fn cudaStreamBeginCapture(stream: cudaStream_t, mode: c_uint) {
        context::bind()?.cuStreamBeginCapture_v2(stream.cast(), mode)
    }

    per_thread(stream)
    fn cudaStreamEndCapture(stream: cudaStream_t, graph: *mut cudaGraph_t) {
        context::bind()?.cuStreamEndCapture(stream.cast(), graph.cast())
    }

    per_thread(stream)
    fn cudaStreamIsCapturing(stream: cudaStream_t, status: *mut c_uint) {
        context::bind()?.cuStreamIsCapturing(stream.cast(), status)
    }

    #[cfg(feature = "cuda-12")]
    per_thread(stream)
    fn cudaStreamGetCaptureInfo(stream: cudaStream_t, status: *mut c_uint, id: *mut c_ulonglong) {
        let (driver, id) = (context::bind()?, id.cast());
        let (graph, nodes, edges, count) = (null_mut(), null_mut(), null_mut(), null_mut());
        driver.cuStreamGetCaptureInfo_v3(stream.cast(), status, id, graph, nodes, edges, count)
    }

    #[cfg(feature = "cuda-12")]
    per_thread(stream)
    fn cudaStreamGetCaptureInfo_v2(
        stream: cudaStream_t, status: *mut c_uint, id: *mut c_ulonglong, graph: *mut cudaGraph_t,
        nodes: *mut *const cudaGraphNode_t, count: *mut usize,
    ) {
        let (driver, graph, nodes) = (context::bind()?, graph.cast(), nodes.cast());
        driver.cuStreamGetCaptureInfo_v3(stream.cast(), status, id.cast(), graph, nodes, null_mut(), count)
    }

    #[cfg(feature = "cuda-12")]
    per_thread(stream)
    fn cudaStreamGetCaptureInfo_v3(
        stream: cudaStream_t, status: *mut c_uint, id: *mut c_ulonglong, graph: *mut cudaGraph_t,
        nodes: *mut *const cudaGraphNode_t, edges: *mut *const cudaGraphEdgeData, count: *mut usize,
    ) {
        let (driver, graph, nodes) = (context::bind()?, graph.cast(), nodes.cast());
        driver.cuStreamGetCaptureInfo_v3(stream.cast(), status, id.cast(), graph, nodes, edges.cast(), count)
    }

    #[cfg(feature = "cuda-13")]
    per_thread(stream)
    fn cudaStreamGetCaptureInfo(
        stream: cudaStream_t, status: *mut c_uint, id: *mut c_ulonglong, graph: *mut cudaGraph_t,
        nodes: *mut *const cudaGraphNode_t, edges: *mut *const cudaGraphEdgeData, count: *mut usize,
    ) {
        let (driver, graph, nodes) = (context::bind()?, graph.cast(), nodes.cast());
        driver.cuStreamGetCaptureInfo_v3(stream.cast(), status, id.cast(), graph, nodes, edges.cast(), count)
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        driver::get()?.cuThreadExchangeStreamCaptureMode(mode)
    }

    fn cudaGraphCreate(graph: *mut cudaGraph_t, flags: c_uint) {
        context::bind()?.cuGraphCreate(graph.cast(), flags)
    }

    fn cudaGraphDestroy(graph: cudaGraph_t) {
        driver::get()?.cuGraphDestroy(graph.cast())
    }

    fn cudaGraphGetNodes(graph: cudaGraph_t, nodes: *mut cudaGraphNode_t, count: *mut usize) {
        driver::get()?.cuGraphGetNodes(graph.cast(), nodes.cast(), count)
    }

    fn cudaGraphInstantiate(executable: *mut cudaGraphExec_t, graph: cudaGraph_t, flags: c_ulonglong) {
        context::bind()?.cuGraphInstantiateWithFlags(executable.cast(), graph.cast(), flags)
    }

    fn cudaGraphInstantiateWithFlags(
        executable: *mut cudaGraphExec_t, graph: cudaGraph_t, flags: c_ulonglong,
    ) {
        context::bind()?.cuGraphInstantiateWithFlags(executable.cast(), graph.cast(), flags)
    }

    per_thread(stream)
    fn cudaGraphUpload(executable: cudaGraphExec_t, stream: cudaStream_t) {
        context::bind()?.cuGraphUpload(executable.cast(), stream.cast())
    }

    per_thread(stream)
    fn cudaGraphLaunch(executable: cudaGraphExec_t, stream: cudaStream_t) {
        context::bind()?.cuGraphLaunch(executable.cast(), stream.cast())
    }

    fn cudaGraphExecDestroy(executable: cudaGraphExec_t) {
        driver::get()?.cuGraphExecDestroy(executable.cast())
    }

    fn cudaUserObjectCreate(
        object: *mut cudaUserObject_t, data: *mut c_void, destroy: cudaHostFn_t, count: c_uint, flags: c_uint,
    ) {
        driver::get()?.cuUserObjectCreate(object.cast(), data, destroy, count, flags)
    }

    fn cudaUserObjectRetain(object: cudaUserObject_t, count: c_uint) {
        driver::get()?.cuUserObjectRetain(object.cast(), count)
    }

    fn cudaUserObjectRelease(object: cudaUserObject_t, count: c_uint) {
        driver::get()?.cuUserObjectRelease(object.cast(), count)
    }

    fn cudaGraphRetainUserObject(graph: cudaGraph_t, object: cudaUserObject_t, count: c_uint, flags: c_uint) {
        driver::get()?.cuGraphRetainUserObject(graph.cast(), object.cast(), count, flags)
    }

    fn cudaGraphReleaseUserObject(graph: cudaGraph_t, object: cudaUserObject_t, count: c_uint) {
        driver::get()?.cuGraphReleaseUserObject(graph.cast(), object.cast(), count)
    }
}

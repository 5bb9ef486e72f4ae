//! Capture of streams, graphs, and the user objects that they reference.

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};
use std::sync::Arc;
use std::{mem, ptr};

use cuda_common::report_unsupported;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphExec, CUgraphInstantiateResult as Instantiated,
    CUgraphNode, CUgraphNodeType as Kind, CUstream, CUstreamCaptureStatus as Status, CUuserObject,
};

use super::{put, put_if_wanted, refuse, result};
use crate::callback::{Callback, Function, UserObject, start_destructors};
use crate::current::{Current, Mode};
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::handle::{ExecId, GraphId, NodeId, StreamId, UserObjectId};
use crate::operation::Work;
use crate::scheduler::Executor;
use crate::state::{Action, Request, State};

const AUTO_FREE_ON_LAUNCH: u64 = 1;
const DEVICE_LAUNCH: u64 = 4;
const ALL_FLAGS: u64 = 15;

fn capture(state: &mut State, stream: CUstream) -> Result<(StreamId, Option<(GraphId, bool)>)> {
    let stream = state.stream(stream.addr())?;
    ensure(state.captured_with(stream).is_empty(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)?;
    let graph = state.captures.of(stream);
    Ok((stream, graph.map(|graph| (graph, state.captures.is_valid(graph)))))
}

fn status(capture: Option<(GraphId, bool)>) -> c_uint {
    let status = match capture {
        None => Status::CU_STREAM_CAPTURE_STATUS_NONE,
        Some((_, true)) => Status::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        Some((_, false)) => Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    };
    status as c_uint
}

fn kind(action: &Action) -> Kind {
    match action {
        Action::Record(_) => Kind::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        Action::Wait(_) => Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        Action::Execute(Request { work: Work::Call { .. }, executor: Executor::Host, .. }) => {
            Kind::CU_GRAPH_NODE_TYPE_HOST
        }
        Action::Execute(Request { work: Work::Call { .. }, .. }) => Kind::CU_GRAPH_NODE_TYPE_KERNEL,
        Action::Execute(Request { work: Work::Copy { .. }, .. }) => Kind::CU_GRAPH_NODE_TYPE_MEMCPY,
        Action::Execute(Request { work: Work::Fill { .. }, .. }) => Kind::CU_GRAPH_NODE_TYPE_MEMSET,
        Action::Execute(_) => Kind::CU_GRAPH_NODE_TYPE_EMPTY,
    }
}

/// Instantiates a graph.
///
/// # Safety
/// `out` must be null or valid for a write.
unsafe fn instantiate(out: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Result<()> {
    let is_for_kernels = flags & DEVICE_LAUNCH != 0;
    let is_valid = flags <= ALL_FLAGS && !(is_for_kernels && flags & AUTO_FREE_ON_LAUNCH != 0);
    ensure(is_valid && !out.is_null(), CUDA_ERROR_INVALID_VALUE)?;
    if is_for_kernels {
        return refuse("graphs that kernels launch");
    }
    let exec = Driver::get()?.enter().instantiate(GraphId::of(graph), flags)?;
    // SAFETY: the caller promises that it is valid.
    unsafe { put(out, exec.pointer()) }
}

const NO_DESTRUCTOR_SYNC: c_uint = 1;
const MOVE: c_uint = 1;

fn check_count(count: c_uint) -> Result<()> {
    ensure(count != 0 && i32::try_from(count).is_ok(), CUDA_ERROR_INVALID_VALUE)
}

api! {
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint) {
        let mode = Mode::of(mode).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mut state = Driver::get()?.enter();
        let (stream, context) = state.working_stream(stream.addr())?;
        let is_default = state.context(context)?.default_stream == stream;
        ensure(!is_default, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)?;
        let graph = GraphId(state.next_handle());
        state.captures.begin(graph, stream, context, Current::thread(), mode)
    }

    fn cuStreamEndCapture(stream: CUstream, out: *mut CUgraph) {
        put_if_wanted(out, ptr::null_mut());
        let mut state = Driver::get()?.enter();
        let stream = state.stream(stream.addr())?;
        let (result, mut graph) = state.captures.end(stream, Current::thread())?;
        match result {
            Ok(id) if !out.is_null() => {
                let references = mem::take(&mut graph.references);
                state.graphs.insert(id, (Arc::new(graph), references));
                put(out, id.pointer())
            }
            unused => {
                // The graph may call CUDA when it is released.
                drop(state);
                drop(graph);
                unused.map(|_| ())
            }
        }
    }

    fn cuStreamIsCapturing(stream: CUstream, out: *mut c_uint) {
        let (_, capture) = capture(&mut Driver::get()?.enter(), stream)?;
        put(out, status(capture))
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream, out: *mut c_uint, id: *mut u64, graph: *mut CUgraph,
        dependencies: *mut *const NodeId, count: *mut usize,
    ) {
        let mut state = Driver::get()?.enter();
        let (stream, capture) = capture(&mut state, stream)?;
        put(out, status(capture))?;
        let Some((own, is_valid)) = capture else { return Ok(()) };
        put_if_wanted(id, own.0);
        if is_valid {
            let nodes = state.captures.dependencies(stream)?;
            put_if_wanted(graph, own.pointer());
            put_if_wanted(dependencies, nodes.as_ptr());
            put_if_wanted(count, nodes.len());
        }
        Ok(())
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: CUstream, out: *mut c_uint, id: *mut u64, graph: *mut CUgraph,
        dependencies: *mut *const NodeId, edges: *mut *const c_void, count: *mut usize,
    ) {
        // No edge has data.
        put_if_wanted(edges, ptr::null());
        result(cuStreamGetCaptureInfo_v2(stream, out, id, graph, dependencies, count))
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        Driver::get()?;
        let fresh = mode.as_ref().copied().and_then(Mode::of);
        let old = Current::exchange_capture_mode(fresh.ok_or(CUDA_ERROR_INVALID_VALUE)?);
        put(mode, old as c_uint)
    }

    fn cuGraphDestroy(graph: CUgraph) {
        // The lock is released before the graph, which may call CUDA then.
        let graph = Driver::get()?.enter().graphs.remove(&GraphId::of(graph));
        graph.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn cuGraphGetNodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) {
        let state = Driver::get()?.enter();
        let (graph, _) = state.graphs.get(&GraphId::of(graph)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if out.is_null() {
            return put(count, graph.nodes.len());
        }
        let room = *count.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let nodes = graph.nodes.iter().map(|node| node.handle.pointer());
        for (index, node) in nodes.chain(std::iter::repeat(ptr::null_mut())).take(room).enumerate() {
            out.add(index).write(node);
        }
        put(count, room.min(graph.nodes.len()))
    }

    fn cuGraphNodeGetType(node: CUgraphNode, out: *mut c_uint) {
        let state = Driver::get()?.enter();
        let handle = NodeId::of(node);
        let mut nodes = state.graphs.values().flat_map(|(graph, _)| &graph.nodes);
        let node = nodes.find(|node| node.handle == handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        put(out, kind(&node.action) as c_uint)
    }

    fn cuGraphInstantiateWithFlags(out: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong)
        = instantiate(out, graph, flags);

    fn cuGraphInstantiate_v2(
        out: *mut CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, log: *mut c_char, length: usize,
    ) {
        put_if_wanted(error, ptr::null_mut());
        put_if_wanted(if length == 0 { ptr::null_mut() } else { log }, 0);
        instantiate(out, graph, 0)
    }

    fn cuGraphInstantiateWithParams(
        out: *mut CUgraphExec, graph: CUgraph, parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) {
        const UPLOAD: u64 = 2;
        ensure(!parameters.is_null(), CUDA_ERROR_INVALID_VALUE)?;
        let (flags, stream) = ((*parameters).flags, (*parameters).hUploadStream);
        if flags & UPLOAD != 0 {
            Driver::get()?.enter().stream(stream.addr())?;
        }
        let made = instantiate(out, graph, flags);
        let result = match made {
            Ok(()) => Instantiated::CUDA_GRAPH_INSTANTIATE_SUCCESS,
            Err(_) => Instantiated::CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        (&raw mut (*parameters).hErrNode_out).write(ptr::null_mut());
        (&raw mut (*parameters).result_out).write(result);
        made
    }

    fn cuGraphExecGetFlags(exec: CUgraphExec, out: *mut u64) {
        let state = Driver::get()?.enter();
        let exec = state.execs.get(&ExecId::of(exec)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        put(out, exec.flags)
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) {
        let (driver, mut state) = Driver::entered()?;
        let exec = state.execs.remove(&ExecId::of(exec)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // Its launches are still executed.
        exec.streams.iter().for_each(|&stream| state.close_stream(stream));
        driver.wake(&mut state);
        drop(state);
        // The graph may call CUDA when it is released.
        drop(exec);
        Ok(())
    }

    fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) {
        let mut state = Driver::get()?.enter();
        let stream = state.stream(stream.addr())?;
        state.check_not_captured(stream)?;
        let exec = state.execs.get(&ExecId::of(exec)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // There is no device to upload it to.
        exec.graph.lanes.iter().try_for_each(|&context| state.check(context))
    }

    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) {
        let (driver, mut state) = Driver::entered()?;
        let stream = state.stream(stream.addr())?;
        if state.captures.of(stream).is_some() {
            report_unsupported("cuGraphLaunch on a stream that is captured");
        }
        state.check_not_captured(stream)?;
        let end = driver.launch(&mut state, ExecId::of(exec), stream)?;
        if driver.blocks_launches() {
            let context = state.context_of(stream)?;
            return driver.synchronize(state, &end).check(context);
        }
        Ok(())
    }

    fn cuUserObjectCreate(
        out: *mut CUuserObject, data: *mut c_void, destroy: Option<Function>, count: c_uint, flags: c_uint,
    ) {
        let driver = Driver::get()?;
        check_count(count)?;
        let destroy = destroy.filter(|_| !out.is_null() && flags == NO_DESTRUCTOR_SYNC);
        let destroy = destroy.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mut state = driver.enter();
        let destructors = match &state.destructors {
            Some(destructors) => destructors.clone(),
            None => state.destructors.insert(start_destructors()?).clone(),
        };
        // SAFETY: CUDA's contract: the function may be called with the data, once, on a thread of the driver.
        let destructor = unsafe { Callback::new(move || destroy(data), None) };
        let id = UserObjectId(state.next_handle());
        state.user_objects.retain(id, Arc::new(UserObject { destructor, destructors }), count);
        put(out, id.pointer())
    }

    fn cuUserObjectRetain(object: CUuserObject, count: c_uint) {
        let mut state = Driver::get()?.enter();
        check_count(count)?;
        let id = UserObjectId::of(object);
        let object = state.user_object(id)?;
        state.user_objects.retain(id, object, count);
        Ok(())
    }

    fn cuUserObjectRelease(object: CUuserObject, count: c_uint) {
        let mut state = Driver::get()?.enter();
        check_count(count)?;
        state.user_objects.release(UserObjectId::of(object), count).map(drop)
    }

    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) {
        let mut state = Driver::get()?.enter();
        check_count(count)?;
        let (graph, id) = (GraphId::of(graph), UserObjectId::of(object));
        // First, so that no reference of the program is lost.
        state.references(graph)?;
        let object = match flags {
            0 => state.user_object(id)?,
            MOVE => state.user_objects.release(id, count)?,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        state.references(graph)?.retain(id, object, count);
        Ok(())
    }

    fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint) {
        let mut state = Driver::get()?.enter();
        check_count(count)?;
        state.references(GraphId::of(graph))?.release(UserObjectId::of(object), count).map(drop)
    }
}

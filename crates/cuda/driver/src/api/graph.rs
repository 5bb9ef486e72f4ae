//! Capture of streams, and graphs.

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};
use std::mem;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphExec, CUgraphInstantiateResult as Instantiated,
    CUgraphNode, CUgraphNodeType as Kind, CUresult, CUstream, CUstreamCaptureStatus as Status,
};

use super::{answer, put, unsupported};
use crate::capture::Mode;
use crate::context::Current;
use crate::driver::{Action, Driver, Request, State};
use crate::error::Result;
use crate::handle::{ExecId, GraphId, NodeId, StreamId};
use crate::operation::Work;
use crate::scheduler::Executor;

const AUTO_FREE_ON_LAUNCH: u64 = 1;
const DEVICE_LAUNCH: u64 = 4;
const ALL_FLAGS: u64 = 15;

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint) -> CUresult {
    let begin = || {
        let mode = Mode::of(mode).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let mut state = Driver::get()?.enter();
        let stream = state.stream(stream.addr())?;
        let context = state.context_of(stream)?;
        state.check(context)?;
        if state.context(context)?.default_stream == stream {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let thread = state.thread()?;
        let graph = GraphId(state.next_handle());
        state.captures.begin(graph, stream, context, thread, mode)
    };
    answer(begin())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, out: *mut CUgraph) -> CUresult {
    let end = || {
        if !out.is_null() {
            // SAFETY: CUDA's contract: valid for a write.
            unsafe { put(out, ptr::null_mut())? };
        }
        let mut state = Driver::get()?.enter();
        let stream = state.stream(stream.addr())?;
        let thread = state.thread()?;
        let (result, mut graph) = state.captures.end(stream, thread)?;
        match result {
            // Nobody asked for the graph.
            Ok(_) if out.is_null() => {
                drop(state);
                drop(graph);
                Ok(())
            }
            Ok(id) => {
                let references = mem::take(&mut graph.references);
                state.graphs.insert(id, (Arc::new(graph), references));
                // SAFETY: as above.
                unsafe { put(out, id.pointer()) }
            }
            Err(error) => {
                // The release of what was captured may call CUDA.
                drop(state);
                drop(graph);
                Err(error)
            }
        }
    };
    answer(end())
}

/// The capture that a stream is part of, and whether it can still become a graph.
fn capture(state: &mut State, stream: CUstream) -> Result<(StreamId, Option<(GraphId, bool)>)> {
    let stream = state.stream(stream.addr())?;
    if !state.captured_with(stream).is_empty() {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
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

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(stream: CUstream, out: *mut c_uint) -> CUresult {
    let find = || {
        let (_, capture) = capture(&mut Driver::get()?.enter(), stream)?;
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(out, status(capture)) }
    };
    answer(find())
}

/// Stores an answer where the program wants it, if it does.
///
/// # Safety
///
/// `out` is null or valid for a write.
unsafe fn put_if_wanted<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Ok(());
    }
    // SAFETY: the caller promises that it is valid.
    unsafe { put(out, value) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: CUstream,
    out: *mut c_uint,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const NodeId,
    count: *mut usize,
) -> CUresult {
    let find = || {
        let mut state = Driver::get()?.enter();
        let (stream, capture) = capture(&mut state, stream)?;
        // SAFETY: CUDA's contract: valid for a write, and what follows that or null.
        unsafe { put(out, status(capture))? };
        let Some((own, is_valid)) = capture else { return Ok(()) };
        // SAFETY: see above.
        unsafe { put_if_wanted(id, own.0)? };
        if is_valid {
            let nodes = state.captures.tell(stream)?;
            // SAFETY: see above.
            unsafe {
                put_if_wanted(graph, own.pointer())?;
                put_if_wanted(dependencies, nodes.as_ptr())?;
                put_if_wanted(count, nodes.len())?;
            }
        }
        Ok(())
    };
    answer(find())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: CUstream,
    out: *mut c_uint,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const NodeId,
    edges: *mut *const c_void,
    count: *mut usize,
) -> CUresult {
    // SAFETY: the same contract. No edge has data.
    let stored = unsafe { put_if_wanted(edges, ptr::null()) };
    // SAFETY: the same contract.
    stored.map_or_else(
        |error| error,
        |()| unsafe { cuStreamGetCaptureInfo_v2(stream, out, id, graph, dependencies, count) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> CUresult {
    let exchange = || {
        Driver::get()?;
        // SAFETY: CUDA's contract: null, which is an error, or valid for a read.
        let fresh = unsafe { mode.as_ref() }.copied().and_then(Mode::of);
        let old = Current::exchange_capture_mode(fresh.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?)?;
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(mode, old as c_uint) }
    };
    answer(exchange())
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    let destroy = || {
        // The lock is free again when the graph is dropped: the release of what it has may call CUDA.
        let graph = Driver::get()?.enter().graphs.remove(&GraphId::of(graph));
        graph.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    };
    answer(destroy())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphGetNodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> CUresult {
    let get = || {
        let state = Driver::get()?.enter();
        let (graph, _) = state.graphs.get(&GraphId::of(graph)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if out.is_null() {
            // SAFETY: CUDA's contract: valid for a write.
            return unsafe { put(count, graph.nodes.len()) };
        }
        // SAFETY: CUDA's contract: null, which is an error, or valid for a read.
        let room = *unsafe { count.as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let nodes = graph.nodes.iter().map(|node| node.handle.pointer());
        for (index, node) in nodes.chain(std::iter::repeat(ptr::null_mut())).take(room).enumerate() {
            // SAFETY: CUDA's contract: there is room for so many.
            unsafe { out.add(index).write(node) };
        }
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(count, room.min(graph.nodes.len())) }
    };
    answer(get())
}

/// The kind of a node.
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

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeGetType(node: CUgraphNode, out: *mut c_uint) -> CUresult {
    let get = || {
        let state = Driver::get()?.enter();
        let handle = NodeId::of(node);
        let mut nodes = state.graphs.values().flat_map(|(graph, _)| &graph.nodes);
        let node = nodes.find(|node| node.handle == handle).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(out, kind(&node.action) as c_uint) }
    };
    answer(get())
}

/// Makes a graph that can be launched.
///
/// # Safety
///
/// `out` is null, which is an error, or valid for a write.
unsafe fn instantiate(out: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Result<()> {
    if out.is_null() || flags > ALL_FLAGS || flags & DEVICE_LAUNCH != 0 && flags & AUTO_FREE_ON_LAUNCH != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if flags & DEVICE_LAUNCH != 0 {
        unsupported::say("graphs that kernels launch");
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let exec = Driver::get()?.enter().instantiate(GraphId::of(graph), flags)?;
    // SAFETY: the caller promises that it is valid.
    unsafe { put(out, exec.pointer()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(
    out: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: CUDA's contract: valid for a write.
    answer(unsafe { instantiate(out, graph, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiate_v2(
    out: *mut CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    log: *mut c_char,
    length: usize,
) -> CUresult {
    let instantiate = || {
        // SAFETY: CUDA's contract: null or valid for a write; no node is at fault, and nothing is said.
        unsafe {
            put_if_wanted(error, ptr::null_mut())?;
            put_if_wanted(if length == 0 { ptr::null_mut() } else { log }, 0)?;
            instantiate(out, graph, 0)
        }
    };
    answer(instantiate())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithParams(
    out: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CUresult {
    const UPLOAD: u64 = 2;
    let instantiate = || {
        if parameters.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: CUDA's contract: the parameters can be read and written; nothing refers to them meanwhile.
        let (flags, stream) = unsafe { ((*parameters).flags, (*parameters).hUploadStream) };
        if flags & UPLOAD != 0 {
            Driver::get()?.enter().stream(stream.addr())?;
        }
        // SAFETY: CUDA's contract: valid for a write.
        let made = unsafe { instantiate(out, graph, flags) };
        let result = match made {
            Ok(()) => Instantiated::CUDA_GRAPH_INSTANTIATE_SUCCESS,
            Err(_) => Instantiated::CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        // SAFETY: see above.
        unsafe {
            (&raw mut (*parameters).hErrNode_out).write(ptr::null_mut());
            (&raw mut (*parameters).result_out).write(result);
        }
        made
    };
    answer(instantiate())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecGetFlags(exec: CUgraphExec, out: *mut u64) -> CUresult {
    let get = || {
        let state = Driver::get()?.enter();
        let exec = state.execs.get(&ExecId::of(exec)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: CUDA's contract: valid for a write.
        unsafe { put(out, exec.flags) }
    };
    answer(get())
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult {
    let destroy = || {
        let driver = Driver::get()?;
        let mut state = driver.enter();
        let exec = state.execs.remove(&ExecId::of(exec)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // What was launched is still executed.
        exec.streams.iter().for_each(|&stream| state.close_stream(stream));
        driver.wake(&mut state);
        drop(state);
        // The release of what the graph has may call CUDA.
        drop(exec);
        Ok(())
    };
    answer(destroy())
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) -> CUresult {
    let upload = || {
        let mut state = Driver::get()?.enter();
        let stream = state.stream(stream.addr())?;
        state.check_not_captured(stream)?;
        let exec = state.execs.get(&ExecId::of(exec)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // There is no device that it could be brought to.
        exec.graph.lanes.iter().try_for_each(|&context| state.check(context))
    };
    answer(upload())
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult {
    let launch = || {
        let driver = Driver::get()?;
        let mut state = driver.enter();
        let stream = state.stream(stream.addr())?;
        if state.captures.of(stream).is_some() {
            unsupported::say("cuGraphLaunch on a stream that is captured");
        }
        state.check_not_captured(stream)?;
        driver.launch(&mut state, ExecId::of(exec), stream)
    };
    answer(launch())
}

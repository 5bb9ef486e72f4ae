//! Captures and graphs.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    self, CUdeviceptr, CUgraph, CUgraphInstantiate_flags, CUresult, CUstream, CUuserObject,
};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError, result};

use crate::work::{
    LENGTH, call, copy, error, event, free, memory, nonblocking, record, require, try_fill, try_wait, wait,
};
use crate::{extension, work};

crate::tests! {
    captured_work_is_executed_at_each_launch_and_not_before
    capture_of_nothing_is_a_graph
    streams_of_a_capture_run_at_the_same_time
    graph_of_two_devices_is_replayed
    launches_of_a_graph_do_not_overlap
    launch_reads_memory_at_its_place_in_the_stream
    external_events_are_recorded_at_each_launch
    unjoined_work_and_waits_for_work_outside_are_errors
    waiting_calls_invalidate_a_capture
    default_stream_invalidates_the_capture_of_a_blocking_stream
    capture_info_has_the_graph_and_the_last_nodes
    graph_whose_memory_was_freed_is_not_launched
    graphs_and_their_resources_are_destroyed_in_any_order
    data_of_a_graph_is_released_with_its_last_reference
    destroyed_stream_ends_its_capture
    user_objects_are_destroyed_with_their_last_reference
    user_objects_outlive_the_launches_of_their_graph
    invalid_references_to_user_objects_are_refused
    memory_of_a_launch_used_on_another_stream_is_reported [
        "race in allocation", "cuMemsetD8Async on stream", "cuMemcpyDtoDAsync_v2 on stream"
    ]
    unordered_streams_of_a_graph_are_reported [
        "race in allocation", "cuMemsetD8Async on stream", "cuMemcpyDtoDAsync_v2 on stream"
    ]
}

const MODE: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags(0);

/// A device whose buffers belong to no stream, and a stream of it.
fn device(ordinal: usize) -> (Arc<CudaContext>, Arc<CudaStream>) {
    let context = CudaContext::new(ordinal).expect("a device");
    // SAFETY: the tests order the uses of memory themselves.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("a stream");
    (context, stream)
}

fn capture(stream: &Arc<CudaStream>, work: impl FnOnce()) -> CudaGraph {
    stream.begin_capture(MODE).expect("a capture");
    work();
    stream.end_capture(FLAGS).expect("the end of a capture").expect("a graph")
}

// SAFETY, for all functions below: handles and memory live until the process ends, unless the test is about that.

fn fill(buffer: CUdeviceptr, value: u8, stream: &CudaStream) {
    try_fill(buffer, value, stream.cu_stream()).expect("a fill");
}

fn first_byte(buffer: CUdeviceptr) -> u8 {
    let mut bytes = [0_u8; LENGTH];
    // SAFETY: see above.
    unsafe { result::memcpy_dtoh_sync(&mut bytes, buffer) }.expect("a copy");
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

/// Orders a stream after the work of another one.
fn join(stream: &CudaStream, other: &CudaStream) {
    wait(stream.cu_stream(), record(other.cu_stream()));
}

/// Returns the error with which a capture ends, if it does not end with a graph.
fn end(stream: &Arc<CudaStream>) -> Option<CUresult> {
    stream.end_capture(FLAGS).err().map(|error| error.0)
}

fn replay(graph: &CudaGraph, stream: &CudaStream) {
    graph.launch().expect("a launch");
    stream.synchronize().expect("the end of a launch");
}

fn captured_work_is_executed_at_each_launch_and_not_before() {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let (_context, stream) = device(0);
    let buffer = memory();
    let graph = capture(&stream, || {
        fill(buffer, 7, &stream);
        call(stream.cu_stream(), || {
            thread::sleep(Duration::from_millis(5));
            COUNT.fetch_add(1, Ordering::SeqCst);
        });
    });
    stream.synchronize().expect("nothing");
    assert_eq!((first_byte(buffer), COUNT.load(Ordering::SeqCst)), (0, 0));
    for launches in 1..=3 {
        fill(buffer, 1, &stream);
        replay(&graph, &stream);
        assert_eq!((first_byte(buffer), COUNT.load(Ordering::SeqCst)), (7, launches));
    }
    let mut nodes = [ptr::null_mut(); 3];
    let (mut found, mut room) = (0, nodes.len());
    let mut kinds = [sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY; 2];
    // SAFETY: variables with as much room.
    unsafe {
        sys::cuGraphGetNodes(graph.cu_graph(), ptr::null_mut(), &raw mut found).result().expect("a number");
        sys::cuGraphGetNodes(graph.cu_graph(), nodes.as_mut_ptr(), &raw mut room).result().expect("nodes");
        for (node, kind) in nodes.into_iter().zip(&mut kinds) {
            sys::cuGraphNodeGetType(node, kind).result().expect("a type");
        }
    }
    assert_eq!((found, room, nodes[2].is_null()), (2, 2, true));
    use sys::CUgraphNodeType::{CU_GRAPH_NODE_TYPE_HOST, CU_GRAPH_NODE_TYPE_MEMSET};
    assert_eq!(kinds, [CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_HOST]);
}

fn capture_of_nothing_is_a_graph() {
    let (_context, stream) = device(0);
    let graph = capture(&stream, || ());
    graph.upload().expect("nothing to bring there");
    replay(&graph, &stream);
    stream.begin_capture(MODE).expect("a capture");
    let again = stream.begin_capture(MODE);
    assert_eq!(again, Err(error(CUresult::CUDA_ERROR_ILLEGAL_STATE)));
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
        | CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
    let refused = stream.end_capture(flags).err();
    assert_eq!(refused, Some(error(CUresult::CUDA_ERROR_INVALID_VALUE)));
    assert_eq!(end(&stream), Some(CUresult::CUDA_ERROR_ILLEGAL_STATE), "it has ended");
}

/// Two functions wait for each other, on two streams of a capture.
fn streams_of_a_capture_run_at_the_same_time() {
    static ARRIVED: AtomicUsize = AtomicUsize::new(0);
    fn rendezvous() {
        let (arrived, start) = (ARRIVED.fetch_add(1, Ordering::SeqCst), Instant::now());
        while ARRIVED.load(Ordering::SeqCst) < arrived / 2 * 2 + 2 {
            assert!(start.elapsed().as_secs() < 10, "the other function has not started");
            thread::sleep(Duration::from_millis(1));
        }
    }
    let (context, one) = device(0);
    let two = context.new_stream().expect("a stream");
    let buffer = memory();
    let graph = capture(&one, || {
        fill(buffer, 1, &one);
        join(&two, &one);
        [&one, &two].into_iter().for_each(|stream| call(stream.cu_stream(), rendezvous));
        fill(buffer, 2, &two);
        join(&one, &two);
        fill(buffer, 3, &one);
    });
    for launches in 1..=3 {
        replay(&graph, &one);
        assert_eq!((first_byte(buffer), ARRIVED.load(Ordering::SeqCst)), (3, 2 * launches));
    }
}

fn graph_of_two_devices_is_replayed() {
    let (second, two) = device(1);
    second.bind_to_thread().expect("a device");
    let (to, done) = (memory(), event());
    let (first, one) = device(0);
    first.bind_to_thread().expect("a device");
    let from = memory();
    let graph = capture(&one, || {
        fill(from, 5, &one);
        join(&two, &one);
        copy(to, from, two.cu_stream());
        // SAFETY: see above.
        unsafe { result::event::record(done, two.cu_stream()) }.expect("a record");
        wait(one.cu_stream(), done);
    });
    for _ in 0..3 {
        fill(to, 0, &one);
        replay(&graph, &one);
        assert_eq!(first_byte(to), 5);
    }
}

fn launches_of_a_graph_do_not_overlap() {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    fn run() {
        assert_eq!(RUNNING.fetch_add(1, Ordering::SeqCst), 0);
        thread::sleep(Duration::from_millis(10));
        RUNNING.fetch_sub(1, Ordering::SeqCst);
        RUNS.fetch_add(1, Ordering::SeqCst);
    }
    let (context, stream) = device(0);
    let graph = capture(&stream, || call(stream.cu_stream(), run));
    for other in [nonblocking(), nonblocking(), stream.cu_stream()] {
        // SAFETY: both are alive.
        unsafe { result::graph::launch(graph.cu_graph_exec(), other) }.expect("a launch");
    }
    context.synchronize().expect("the end of all launches");
    assert_eq!(RUNS.load(Ordering::SeqCst), 3);
}

/// Of the device, and of the host.
fn launch_reads_memory_at_its_place_in_the_stream() {
    let (context, stream) = device(0);
    let (from, to, last, uploaded) = (memory(), memory(), memory(), memory());
    let (mut sent, mut received) = (vec![0_u8; LENGTH], vec![0_u8; LENGTH]);
    let other = context.new_stream().expect("a stream");
    let graph = capture(&stream, || {
        join(&other, &stream);
        copy(to, from, other.cu_stream());
        // SAFETY: both live until the graph is destroyed.
        unsafe {
            result::memcpy_htod_async(uploaded, &sent, other.cu_stream()).expect("a copy");
            result::memcpy_dtoh_async(&mut received, uploaded, other.cu_stream()).expect("a copy");
        }
        join(&stream, &other);
    });
    for value in 1..=3 {
        sent.fill(value);
        fill(from, value, &stream);
        graph.launch().expect("a launch");
        copy(last, to, stream.cu_stream());
        fill(to, 0, &stream);
        stream.synchronize().expect("the end");
        assert_eq!(first_byte(last), value);
        assert!(received.iter().all(|byte| *byte == value), "{value}");
    }
}

fn external_events_are_recorded_at_each_launch() {
    let (context, stream) = device(0);
    let other = context.new_stream().expect("a stream");
    let (before, after, from, to) = (event(), event(), memory(), memory());
    let external = 1;
    let graph = capture(&stream, || {
        // SAFETY: see above.
        unsafe {
            sys::cuStreamWaitEvent(stream.cu_stream(), before, external).result().expect("a node");
            result::memcpy_dtod_async(to, from, LENGTH, stream.cu_stream()).expect("a node");
            sys::cuEventRecordWithFlags(after, stream.cu_stream(), external).result().expect("a node");
        }
    });
    for value in 1..=3 {
        fill(from, value, &other);
        // SAFETY: see above.
        unsafe { result::event::record(before, other.cu_stream()) }.expect("a record");
        graph.launch().expect("a launch");
        wait(other.cu_stream(), after);
        other.synchronize().expect("the end");
        assert_eq!(first_byte(to), value);
    }
    // SAFETY: it is destroyed once.
    unsafe { result::event::destroy(before) }.expect("an end");
    graph.launch().expect("nothing to wait for");
    stream.synchronize().expect("the end");
}

fn unjoined_work_and_waits_for_work_outside_are_errors() {
    let (context, one) = device(0);
    let two = context.new_stream().expect("a stream");
    let (outside, never, buffer) = (record(two.cu_stream()), event(), memory());
    let fork = || {
        one.begin_capture(MODE).expect("a capture");
        join(&two, &one);
        fill(buffer, 1, &two);
    };
    fork();
    assert_eq!(end(&one), Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    fork();
    assert_eq!(end(&two), Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
    assert_eq!(end(&one), Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    for stream in [&one, &two] {
        fill(buffer, 2, stream);
        stream.synchronize().expect("the stream is not captured any more");
    }

    one.begin_capture(MODE).expect("a capture");
    wait(one.cu_stream(), never);
    assert_eq!(try_wait(one.cu_stream(), outside), Err(error(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)));
    let refused = try_fill(buffer, 1, one.cu_stream());
    assert_eq!(refused, Err(error(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)));
    assert_eq!(end(&one), Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    one.begin_capture(MODE).expect("a capture");
    let inside = record(one.cu_stream());
    one.end_capture(FLAGS).expect("the end of a capture");
    assert_eq!(try_wait(two.cu_stream(), inside), Err(error(CUresult::CUDA_ERROR_CAPTURED_EVENT)));
}

fn waiting_calls_invalidate_a_capture() {
    use sys::CUstreamCaptureStatus::{CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED};
    const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    let (context, stream) = device(0);
    let (buffer, raw) = (memory(), stream.cu_stream());
    type Call<'a> = &'a dyn Fn() -> Result<(), DriverError>;
    let calls: [(Call<'_>, CUresult); 7] = [
        (&|| stream.synchronize(), UNSUPPORTED),
        // SAFETY: see above.
        (&|| unsafe { sys::cuStreamQuery(raw) }.result(), UNSUPPORTED),
        (&|| context.synchronize(), UNSUPPORTED),
        // SAFETY: see above.
        (&|| unsafe { result::malloc_sync(LENGTH) }.map(drop), UNSUPPORTED),
        // SAFETY: see above.
        (&|| unsafe { result::malloc_async(raw, LENGTH) }.map(drop), UNSUPPORTED),
        // SAFETY: see above.
        (&|| unsafe { result::event::query(event()) }, UNSUPPORTED),
        // SAFETY: see above.
        (&|| unsafe { result::event::synchronize(record(raw)) }, CUresult::CUDA_ERROR_CAPTURED_EVENT),
    ];
    for (number, (call, expected)) in calls.into_iter().enumerate() {
        stream.begin_capture(MODE).expect("a capture");
        fill(buffer, 1, &stream);
        assert_eq!(stream.capture_status(), Ok(CU_STREAM_CAPTURE_STATUS_ACTIVE));
        assert_eq!(call(), Err(error(expected)), "call {number}");
        assert_eq!(stream.capture_status(), Ok(CU_STREAM_CAPTURE_STATUS_INVALIDATED), "call {number}");
        assert_eq!(end(&stream), Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), "call {number}");
    }
    // A relaxed capture forbids no allocations.
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("a capture");
    memory();
    assert!(stream.end_capture(FLAGS).is_ok());
    // A global capture also forbids them on other threads, unless these change their mode.
    let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    stream.begin_capture(global).expect("a capture");
    let allocate = |context: &CudaContext, mut mode| {
        context.bind_to_thread().expect("a device");
        // SAFETY: a valid mode; see above.
        unsafe {
            sys::cuThreadExchangeStreamCaptureMode(&raw mut mode).result().expect("a mode");
            result::malloc_sync(LENGTH).map(drop)
        }
    };
    thread::scope(|scope| {
        assert_eq!(scope.spawn(|| allocate(&context, MODE)).join().expect("a result"), Ok(()));
        let refused = scope.spawn(|| allocate(&context, global)).join().expect("a result");
        assert_eq!(refused, Err(error(UNSUPPORTED)));
    });
    assert!(stream.end_capture(FLAGS).is_err());
}

fn default_stream_invalidates_the_capture_of_a_blocking_stream() {
    let (_context, nonblocking) = device(0);
    let blocking = result::stream::create(result::stream::StreamKind::Default).expect("a stream");
    let buffer = memory();
    // SAFETY: see above.
    unsafe {
        let null: CUstream = ptr::null_mut();
        let begun = result::stream::begin_capture(null, MODE);
        assert_eq!(begun, Err(error(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)));
        let implicit = Err(error(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
        result::stream::begin_capture(blocking, MODE).expect("a capture");
        assert_eq!(result::stream::is_capturing(null).map(|_| ()), implicit);
        assert_eq!(result::memset_d8_sync(buffer, 1, LENGTH), implicit);
        let ended = result::stream::end_capture(blocking);
        assert_eq!(ended, Err(error(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)));
        result::memset_d8_sync(buffer, 2, LENGTH).expect("nothing is captured any more");
    }
    nonblocking.begin_capture(MODE).expect("a capture");
    // SAFETY: see above.
    unsafe { result::memset_d8_sync(buffer, 3, LENGTH) }.expect("no order between the streams");
    assert!(nonblocking.end_capture(FLAGS).is_ok());
    assert_eq!(first_byte(buffer), 3);
}

fn capture_info_has_the_graph_and_the_last_nodes() {
    let (_context, stream) = device(0);
    let buffer = memory();
    assert_eq!(info(&stream).0, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    stream.begin_capture(MODE).expect("a capture");
    let (status, id, graph, count, _) = info(&stream);
    assert_eq!((status as u32, count, id == 0, graph.is_null()), (1, 0, false, false));
    let [first, second] = [1, 2].map(|value| {
        fill(buffer, value, &stream);
        info(&stream)
    });
    assert_eq!((first.1, first.2, first.3), (id, graph, 1));
    assert_ne!(first.4, second.4);
    let ended = stream.end_capture(FLAGS).expect("the end of a capture").expect("a graph");
    assert_eq!(ended.cu_graph(), graph);
}

fn graph_whose_memory_was_freed_is_not_launched() {
    let (_context, stream) = device(0);
    let buffer = memory();
    let graph = capture(&stream, || fill(buffer, 1, &stream));
    graph.launch().expect("a launch");
    free(buffer);
    assert_eq!(graph.launch(), Err(error(CUresult::CUDA_ERROR_INVALID_VALUE)));
}

fn graphs_and_their_resources_are_destroyed_in_any_order() {
    let (context, stream) = device(0);
    for order in [[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 0, 1], [2, 3, 1, 0]] {
        let (own, buffer) = (nonblocking(), memory());
        // SAFETY: each handle is destroyed once.
        unsafe {
            result::stream::begin_capture(own, MODE).expect("a capture");
            result::memset_d8_async(buffer, 1, LENGTH, own).expect("a node");
            let join = record(own);
            wait(stream.cu_stream(), join);
            fill(buffer, 2, &stream);
            wait(own, record(stream.cu_stream()));
            let graph = result::stream::end_capture(own).expect("a graph");
            let exec = result::graph::instantiate(graph, FLAGS).expect("an executable graph");
            result::graph::launch(exec, own).expect("a launch");
            result::graph::launch(exec, stream.cu_stream()).expect("a launch");
            result::event::destroy(join).expect("an end");
            for end in order {
                match end {
                    0 => result::graph::destroy(graph).expect("an end"),
                    1 => result::graph::exec_destroy(exec).expect("an end"),
                    2 => result::stream::destroy(own).expect("an end"),
                    _ => result::free_sync(buffer).expect("a free"),
                }
            }
            assert!(result::graph::destroy(graph).is_err(), "it is destroyed");
            assert!(result::graph::launch(exec, stream.cu_stream()).is_err(), "it is destroyed");
        }
    }
    context.synchronize().expect("the end of all launches");
    // SAFETY: null is no graph.
    assert!(unsafe { result::graph::destroy(ptr::null_mut()) }.is_err());
}

fn data_of_a_graph_is_released_with_its_last_reference() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    static RELEASES: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn run(_data: *mut c_void) {
        thread::sleep(Duration::from_millis(5));
        RUNS.fetch_add(1, Ordering::SeqCst);
    }
    unsafe extern "C" fn release(_data: *mut c_void) {
        RELEASES.fetch_add(if extension::may_call_cuda() { 1 } else { 1000 }, Ordering::SeqCst);
    }
    let (context, stream) = device(0);
    let buffer = memory();
    let add = || {
        let (stream, access, data) = (stream.cu_stream(), extension::writes(buffer, LENGTH), ptr::null_mut());
        extension::enqueue(stream, access, c"run", [Some(run), Some(release)], data).expect("a node");
    };
    let graph = capture(&stream, add);
    for _ in 0..3 {
        graph.launch().expect("a launch");
    }
    stream.synchronize().expect("the end of the launches");
    assert_eq!((RUNS.load(Ordering::SeqCst), RELEASES.load(Ordering::SeqCst)), (3, 0));
    graph.launch().expect("a launch");
    drop(graph);
    context.synchronize().expect("the end of the launch");
    require(&RELEASES, 1);
    assert_eq!(RUNS.load(Ordering::SeqCst), 4);

    // A capture that fails has nothing to run.
    stream.begin_capture(MODE).expect("a capture");
    add();
    assert!(stream.synchronize().is_err());
    assert!(stream.end_capture(FLAGS).is_err());
    require(&RELEASES, 2);
    assert_eq!(RUNS.load(Ordering::SeqCst), 4);
}

fn destroyed_stream_ends_its_capture() {
    let (_context, stream) = device(0);
    let (own, buffer) = (nonblocking(), memory());
    // SAFETY: a live stream.
    unsafe { result::stream::begin_capture(own, MODE) }.expect("a capture");
    try_fill(buffer, 1, own).expect("a node");
    work::destroy(own);
    memory();
    stream.synchronize().expect("nothing is captured");
    assert_eq!(first_byte(buffer), 0);
}

/// The number of user objects that were destroyed; many more if a destructor may wait for CUDA.
static DESTROYED: AtomicUsize = AtomicUsize::new(0);
/// Held by the test while it releases references, as programs hold locks.
static PROGRAM: Mutex<()> = Mutex::new(());

unsafe extern "C" fn destroy(number: *mut c_void) {
    drop(PROGRAM.lock().expect("nothing panics with it"));
    // SAFETY: null is no event, which is an error.
    let wait = unsafe { sys::cuEventSynchronize(ptr::null_mut()) };
    let is_refused = wait == CUresult::CUDA_ERROR_NOT_PERMITTED;
    DESTROYED.fetch_add(if is_refused { number.addr() } else { 1000 }, Ordering::SeqCst);
}

fn user_object(references: u32) -> CUuserObject {
    let mut object = ptr::null_mut();
    let number = ptr::without_provenance_mut(1);
    // SAFETY: a variable, and a function that follows no pointer.
    unsafe { sys::cuUserObjectCreate(&raw mut object, number, Some(destroy), references, 1) }
        .result()
        .expect("a user object");
    object
}

fn release(object: CUuserObject, count: u32) -> Result<(), DriverError> {
    // SAFETY: it is a number.
    unsafe { sys::cuUserObjectRelease(object, count) }.result()
}

fn graph_retains(graph: CUgraph, object: CUuserObject, count: u32, flags: u32) -> Result<(), DriverError> {
    // SAFETY: they are numbers.
    unsafe { sys::cuGraphRetainUserObject(graph, object, count, flags) }.result()
}

fn graph_releases(graph: CUgraph, object: CUuserObject, count: u32) -> Result<(), DriverError> {
    // SAFETY: they are numbers.
    unsafe { sys::cuGraphReleaseUserObject(graph, object, count) }.result()
}

/// The capture information of a stream: its status, id and graph, and the number and first of its last nodes.
type CaptureInfo = (sys::CUstreamCaptureStatus, u64, CUgraph, usize, Option<sys::CUgraphNode>);

fn info(stream: &CudaStream) -> CaptureInfo {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph, mut nodes, mut count) = (0, ptr::null_mut(), ptr::null(), 99);
    let (out, id_out, graph_out) = (&raw mut status, &raw mut id, &raw mut graph);
    let (nodes_out, count_out) = (&raw mut nodes, &raw mut count);
    let stream = stream.cu_stream();
    // SAFETY: variables.
    unsafe { sys::cuStreamGetCaptureInfo_v2(stream, out, id_out, graph_out, nodes_out, count_out) }
        .result()
        .expect("a result");
    // SAFETY: `count` nodes were stored.
    (status, id, graph, count, (count == 1).then(|| unsafe { *nodes }))
}

fn graph_of(stream: &CudaStream) -> CUgraph {
    info(stream).2
}

/// A flag of `cuGraphRetainUserObject`: moves the program's references to the graph.
const MOVE: u32 = 1;

fn user_objects_are_destroyed_with_their_last_reference() {
    let (_context, stream) = device(0);
    let locked = PROGRAM.lock().expect("nothing panics with it");
    let object = user_object(2);
    release(object, 1).expect("a reference");
    // SAFETY: it is a number.
    unsafe { sys::cuUserObjectRetain(object, 3) }.result().expect("three references");
    release(object, 3).expect("three references");
    release(object, 1).expect("the last one");
    drop(locked);
    require(&DESTROYED, 1);

    // User objects of a failed capture are destroyed with it.
    stream.begin_capture(MODE).expect("a capture");
    let object = user_object(1);
    graph_retains(graph_of(&stream), object, 1, MOVE).expect("a reference");
    graph_retains(graph_of(&stream), object, 1, 0).expect("another one");
    assert!(stream.synchronize().is_err());
    require(&DESTROYED, 1);
    assert!(stream.end_capture(FLAGS).is_err());
    require(&DESTROYED, 2);

    // A graph and its executable graph have their own references.
    let (kept, given_up) = (user_object(1), user_object(1));
    // SAFETY: each handle is destroyed once.
    unsafe {
        result::stream::begin_capture(stream.cu_stream(), MODE).expect("a capture");
        let graph = graph_of(&stream);
        graph_retains(graph, kept, 2, 0).expect("references");
        release(kept, 1).expect("a reference");
        assert_eq!(result::stream::end_capture(stream.cu_stream()), Ok(graph));
        graph_retains(graph, given_up, 1, MOVE).expect("a reference");
        let exec = result::graph::instantiate(graph, FLAGS).expect("an executable graph");
        graph_releases(graph, given_up, 1).expect("a reference");
        graph_releases(graph, kept, 1).expect("a reference");
        result::graph::destroy(graph).expect("an end");
        require(&DESTROYED, 2);
        // The handle is valid as long as anything refers to the object.
        sys::cuUserObjectRetain(kept, 1).result().expect("a reference");
        let locked = PROGRAM.lock().expect("nothing panics with it");
        result::graph::exec_destroy(exec).expect("an end");
        drop(locked);
        require(&DESTROYED, 3);
        release(kept, 1).expect("the last one");
        require(&DESTROYED, 4);
    }
}

fn user_objects_outlive_the_launches_of_their_graph() {
    fn wait_for_the_end() {
        drop(PROGRAM.lock().expect("nothing panics with it"));
        // The object is still there, a moment later too.
        thread::sleep(Duration::from_millis(20));
        assert_eq!(DESTROYED.load(Ordering::SeqCst), 0);
    }
    let (context, stream) = device(0);
    let other = context.new_stream().expect("a stream");
    for last in [&stream, &other] {
        let graph = capture(&stream, || {
            graph_retains(graph_of(&stream), user_object(1), 1, MOVE).expect("a reference");
            join(last, &stream);
            call(last.cu_stream(), wait_for_the_end);
            join(&stream, last);
        });
        let locked = PROGRAM.lock().expect("nothing panics with it");
        graph.launch().expect("a launch");
        graph.launch().expect("a launch");
        drop(graph);
        drop(locked);
        stream.synchronize().expect("the end of the launches");
        require(&DESTROYED, 1);
        DESTROYED.store(0, Ordering::SeqCst);
    }
}

fn invalid_references_to_user_objects_are_refused() {
    const INVALID: Result<(), DriverError> = Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE));
    const TOO_MANY: u32 = i32::MAX as u32 + 1;
    let (_context, stream) = device(0);
    let mut object = ptr::null_mut();
    let out = &raw mut object;
    let valid: sys::CUhostFn = Some(destroy);
    for (out, destroy, references, flags) in [
        (ptr::null_mut(), valid, 1, 1),
        (out, None, 1, 1),
        (out, valid, 0, 1),
        (out, valid, TOO_MANY, 1),
        (out, valid, 1, 0),
    ] {
        // SAFETY: null, or a variable, and a function that follows no pointer.
        let created = unsafe { sys::cuUserObjectCreate(out, ptr::null_mut(), destroy, references, flags) };
        assert_eq!(created.result(), INVALID);
    }
    assert!(object.is_null());

    let object = user_object(2);
    stream.begin_capture(MODE).expect("a capture");
    let (graph, none) = (graph_of(&stream), ptr::without_provenance_mut(0x77));
    for count in [0, 3, TOO_MANY] {
        assert_eq!(release(object, count), INVALID, "{count}");
        assert_eq!(graph_retains(graph, object, count, MOVE), INVALID, "{count}");
        assert_eq!(graph_releases(graph, object, count), INVALID, "{count}");
    }
    assert_eq!(release(none, 1), INVALID);
    // SAFETY: it is a number.
    assert_eq!(unsafe { sys::cuUserObjectRetain(none, 1) }.result(), INVALID);
    assert_eq!(graph_retains(graph, object, 1, 2), INVALID);
    assert_eq!(graph_retains(graph, none, 1, 0), INVALID);
    assert_eq!(graph_retains(none.cast(), object, 1, MOVE), INVALID);
    assert_eq!(graph_releases(none.cast(), object, 1), INVALID);
    // The program still has all its references.
    require(&DESTROYED, 0);
    release(object, 2).expect("both references");
    require(&DESTROYED, 1);
    assert_eq!(release(object, 1), INVALID);
}

fn memory_of_a_launch_used_on_another_stream_is_reported() {
    let (context, stream) = device(0);
    let (buffer, to) = (memory(), memory());
    let other = context.new_stream().expect("a stream");
    let graph = capture(&stream, || fill(buffer, 1, &stream));
    graph.launch().expect("a launch");
    copy(to, buffer, other.cu_stream());
}

fn unordered_streams_of_a_graph_are_reported() {
    let (context, one) = device(0);
    let (buffer, to) = (memory(), memory());
    let two = context.new_stream().expect("a stream");
    let graph = capture(&one, || {
        join(&two, &one);
        fill(buffer, 1, &one);
        // The mistake: it is not ordered with the fill.
        copy(to, buffer, two.cu_stream());
        join(&one, &two);
    });
    graph.launch().expect("a launch");
}

//! Programs that end only if NCCL's operations return when they are enqueued, by name.
//!
//! They call NCCL's functions directly, because cudarc's safe interface lacks some.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t::ncclFloat32, ncclResult_t};
use cudarc::nccl::{Comm, ReduceOp, group_end, group_start};

use crate::rank::{Rank, assert_all, check, group, run_ranks, unique_id};

/// Long enough that a send does not fit into a buffer, and no input is sent with the call.
const LONG: usize = 1 << 20;
const SHORT: usize = 4;

pub(crate) fn run(name: &str) {
    match name {
        "opposite_directions_on_two_streams" => opposite_directions(),
        "two_streams_of_one_communicator" => two_streams(),
        "group_on_two_streams" => group_on_two_streams(),
        "graph_of_all_devices" => graph_of_all_devices(),
        "graphs_on_two_streams_between_other_calls" => graphs_on_two_streams(),
        "communicator_that_ends_before_its_graph" => end_before_graph(),
        "group_that_is_captured_in_part" => captured_in_part(),
        other => panic!("there is no program {other}"),
    }
}

fn send(comm: ncclComm_t, from: &CudaSlice<f32>, peer: usize, stream: &CudaStream) -> ncclResult_t {
    let count = from.len();
    let (from, _read) = from.device_ptr(stream);
    // SAFETY: device memory of `count` elements, which lives until the stream has been waited for.
    unsafe {
        sys::ncclSend(from as *const c_void, count, ncclFloat32, peer as i32, comm, stream.cu_stream().cast())
    }
}

fn receive(comm: ncclComm_t, to: &mut CudaSlice<f32>, peer: usize, stream: &CudaStream) -> ncclResult_t {
    let count = to.len();
    let (to, _written) = to.device_ptr_mut(stream);
    // SAFETY: as above.
    unsafe {
        sys::ncclRecv(to as *mut c_void, count, ncclFloat32, peer as i32, comm, stream.cu_stream().cast())
    }
}

/// Sends to the other of two ranks on one stream, and receives on another, in a group.
fn exchange(
    rank: &Rank,
    from: &CudaSlice<f32>,
    to: &mut CudaSlice<f32>,
    [one, two]: [&CudaStream; 2],
) -> ncclResult_t {
    group(|| {
        check(send(rank.comm, from, 1 - rank.number, one));
        check(receive(rank.comm, to, 1 - rank.number, two));
    })
}

/// Both ranks send first and receive then, on a communicator and a stream for each direction.
fn opposite_directions() {
    let second = unique_id();
    run_ranks(2, |rank| {
        let other = Rank::join(rank.number, 2, second);
        let (forward, backward) = (rank.comm, other.comm);
        let (one, two) = (Arc::clone(&rank.stream), Arc::clone(&other.stream));
        let (from, mut to) = (rank.filled(LONG), rank.zeros(LONG));
        rank.stream.synchronize().unwrap();
        if rank.number == 0 {
            check(send(forward, &from, 1, &one));
            check(receive(backward, &mut to, 1, &two));
            assert_all(&two, &to, 2.0);
        } else {
            check(send(backward, &from, 0, &two));
            check(receive(forward, &mut to, 0, &one));
            assert_all(&one, &to, 1.0);
        }
        other.destroy();
        rank.destroy();
    });
}

/// Operations of one communicator on two streams run in the order of the calls.
fn two_streams() {
    run_ranks(2, |rank| {
        let streams = [Arc::clone(&rank.stream), rank.context.new_stream().unwrap()];
        let mut buffers: Vec<_> = (0..=12).map(|_| rank.filled(LONG)).collect();
        rank.stream.synchronize().unwrap();
        for step in 0..12 {
            let (before, after) = buffers.split_at_mut(step + 1);
            // The ranks need not use the same streams.
            let stream = &streams[(step + rank.number) % 2];
            check(rank.all_reduce(&before[step], &mut after[0], stream));
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        for (step, buffer) in buffers.iter().enumerate().skip(1) {
            assert_all(&rank.stream, buffer, 3.0 * 2_f32.powi(step as i32 - 1));
        }
        rank.destroy();
    });
}

/// A group on two streams runs after both, and both continue after it.
fn group_on_two_streams() {
    run_ranks(2, |rank| {
        let (one, two) = (Arc::clone(&rank.stream), rank.context.new_stream().unwrap());
        let (from, mut to) = (rank.filled(LONG), two.alloc_zeros::<f32>(LONG).unwrap());
        check(exchange(&rank, &from, &mut to, [&one, &two]));
        let expected = (2 - rank.number) as f32;
        assert_all(&two, &to, expected);
        assert_all(&one, &to, expected);
        rank.destroy();
    });
}

const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// Captures work on a stream of a rank. The program orders the uses of memory itself.
fn capture(stream: &Arc<CudaStream>, work: impl FnOnce()) -> CudaGraph {
    stream.begin_capture(MODE).unwrap();
    work();
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap()
}

/// One thread captures the work of all devices in one graph: their streams wait for the first one, and it for them.
fn graph_of_all_devices() {
    let stream = |device| {
        let context = CudaContext::new(device).unwrap();
        // SAFETY: the host waits before another stream uses a buffer.
        unsafe { context.disable_event_tracking() };
        context.new_stream().unwrap()
    };
    let streams = [0, 1, 2].map(stream);
    let comms = Comm::from_devices(streams.to_vec()).unwrap();
    let mut buffers = streams.each_ref().map(|stream| stream.clone_htod(&vec![1.0_f32; LONG]).unwrap());
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    let (first, others) = streams.split_first().unwrap();
    first.context().bind_to_thread().unwrap();
    let graph = capture(first, || {
        let fork = first.record_event(None).unwrap();
        others.iter().for_each(|other| other.wait(&fork).unwrap());
        group_start().unwrap();
        for (comm, buffer) in comms.iter().zip(&mut buffers) {
            comm.all_reduce_in_place(buffer, &ReduceOp::Sum).unwrap();
        }
        group_end().unwrap();
        others.iter().for_each(|other| first.wait(&other.record_event(None).unwrap()).unwrap());
    });
    for launches in 1..=3 {
        graph.launch().unwrap();
        first.synchronize().unwrap();
        for (stream, buffer) in streams.iter().zip(&buffers) {
            assert_all(stream, buffer, 3_f32.powi(launches));
        }
    }
}

/// Graphs of one communicator on two streams, and calls that are not captured, run in the order of launches and calls,
/// though nothing but NCCL orders the streams.
fn graphs_on_two_streams() {
    run_ranks(2, |rank| {
        // SAFETY: the host waits before another stream uses a buffer.
        unsafe { rank.context.disable_event_tracking() };
        let streams = [Arc::clone(&rank.stream), rank.context.new_stream().unwrap()];
        let (from, mut one, mut two, mut three) =
            (rank.filled(LONG), rank.zeros(LONG), rank.zeros(LONG), rank.zeros(SHORT));
        let short = rank.filled(SHORT);
        rank.stream.synchronize().unwrap();
        let graphs = [
            capture(&streams[0], || check(rank.all_reduce(&from, &mut one, &streams[0]))),
            capture(&streams[1], || check(rank.all_reduce(&from, &mut two, &streams[1]))),
        ];
        for step in 0..10 {
            graphs[step % 2].launch().unwrap();
            graphs[0].launch().unwrap();
            check(rank.all_reduce(&short, &mut three, &streams[1]));
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        assert_all(&rank.stream, &one, 3.0);
        assert_all(&rank.stream, &two, 3.0);
        assert_all(&rank.stream, &three, 3.0);
        // The launched work is complete before the communicator is destroyed.
        graphs[0].launch().unwrap();
        rank.destroy();
        assert_eq!(streams[0].context().check_err(), Ok(()));
    });
}

/// A graph may outlive its communicator: a launch then does nothing, and is reported.
fn end_before_graph() {
    run_ranks(2, |rank| {
        // SAFETY: one stream uses the buffers.
        unsafe { rank.context.disable_event_tracking() };
        let stream = Arc::clone(&rank.stream);
        let (from, mut to) = (rank.filled(LONG), rank.zeros(LONG));
        let graph = capture(&stream, || check(rank.all_reduce(&from, &mut to, &stream)));
        graph.launch().unwrap();
        rank.destroy();
        assert_all(&stream, &to, 3.0);
        stream.memset_zeros(&mut to).unwrap();
        graph.launch().unwrap();
        assert_all(&stream, &to, 0.0);
    });
}

/// A group on two streams is refused if only one is captured, and the communicator remains usable.
fn captured_in_part() {
    run_ranks(2, |rank| {
        // SAFETY: the host waits before another stream uses a buffer.
        unsafe { rank.context.disable_event_tracking() };
        let (one, two) = (Arc::clone(&rank.stream), rank.context.new_stream().unwrap());
        let (from, mut to) = (rank.filled(LONG), rank.zeros(LONG));
        rank.stream.synchronize().unwrap();
        one.begin_capture(MODE).unwrap();
        let refused = exchange(&rank, &from, &mut to, [&one, &two]);
        assert_eq!(refused, ncclResult_t::ncclInvalidUsage);
        drop(one.end_capture(CUgraphInstantiate_flags(0)).unwrap());
        check(rank.all_reduce(&from, &mut to, &two));
        assert_all(&two, &to, 3.0);
        rank.destroy();
    });
}

//! Programs that end only if NCCL's operations return when they are enqueued, by name.
//!
//! They call NCCL's functions directly, because cudarc's safe interface lacks some.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, result};
use cudarc::nccl::sys::{
    self, ncclComm_t, ncclConfig_t, ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum, ncclResult_t,
};

use crate::rank::{Rank, assert_all, check, run_ranks, unique_id};

/// Long enough that a send does not fit into a buffer, and no input is sent with the call.
const LONG: usize = 1 << 20;
const SHORT: usize = 4;

pub(crate) fn run(name: &str) {
    match name {
        "collective_while_the_host_waits" => enqueue_after_rank_0(false),
        "send_while_the_host_waits" => enqueue_after_rank_0(true),
        "opposite_directions_on_two_streams" => opposite_directions(),
        "two_communicators_in_different_orders" => two_communicators(),
        "nonblocking_is_done_when_enqueued" => nonblocking(),
        "abort_of_an_operation_without_a_peer" => abort(),
        "destroy_with_work_enqueued" => destroy(),
        "two_streams_of_one_communicator" => two_streams(),
        "group_on_two_streams" => group_on_two_streams(),
        "host_memory_is_refused" => host_memory(),
        "two_ranks_on_one_device" => one_device(),
        "scalar_in_device_memory" => device_scalar(),
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

/// The program `async_host`: rank 0 enqueues its part, then notifies rank 1 through the host, which enqueues its own.
fn enqueue_after_rank_0(message: bool) {
    let notified = AtomicBool::new(false);
    run_ranks(2, |rank| {
        let (from, mut to) = (rank.filled(LONG), rank.zeros(LONG));
        if rank.number == 1 {
            while !notified.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        check(match (message, rank.number) {
            (false, _) => rank.all_reduce(&from, &mut to, &rank.stream),
            (true, 0) => send(rank.comm, &from, 1, &rank.stream),
            (true, _) => receive(rank.comm, &mut to, 0, &rank.stream),
        });
        if rank.number == 0 {
            notified.store(true, SeqCst);
        }
        if !message || rank.number == 1 {
            assert_all(&rank.stream, &to, if message { 1.0 } else { 3.0 });
        }
        rank.destroy();
    });
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

/// The ranks use two communicators in different orders, on two streams.
fn two_communicators() {
    let second = unique_id();
    run_ranks(2, |rank| {
        let other = Rank::join(rank.number, 2, second);
        let (one, two) = (Arc::clone(&rank.stream), Arc::clone(&other.stream));
        let (from, mut to) = (rank.filled(LONG), rank.zeros(LONG));
        let (short, mut sum) = (rank.filled(SHORT), rank.zeros(SHORT));
        rank.stream.synchronize().unwrap();
        if rank.number == 0 {
            check(send(rank.comm, &from, 1, &one));
            check(other.all_reduce(&short, &mut sum, &two));
        } else {
            check(other.all_reduce(&short, &mut sum, &two));
            check(receive(rank.comm, &mut to, 0, &one));
            assert_all(&one, &to, 1.0);
        }
        assert_all(&two, &sum, 3.0);
        other.destroy();
        rank.destroy();
    });
}

/// Polls a communicator until nothing is in progress.
fn settle(comm: ncclComm_t) {
    let start = Instant::now();
    loop {
        let mut state = ncclResult_t::ncclInProgress;
        // SAFETY: a communicator and a valid out-parameter.
        check(unsafe { sys::ncclCommGetAsyncError(comm, &raw mut state) });
        match state {
            ncclResult_t::ncclInProgress => assert!(start.elapsed() < Duration::from_secs(20), "in progress"),
            state => return check(state),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// A nonblocking call ends when the operation is enqueued, though the peer calls only then.
fn nonblocking() {
    let notified = AtomicBool::new(false);
    let id = unique_id();
    thread::scope(|scope| {
        for number in 0..2 {
            let notified = &notified;
            scope.spawn(move || {
                let context = CudaContext::new(number).unwrap();
                let stream = context.new_stream().unwrap();
                let mut comm = std::ptr::null_mut();
                let mut config = nonblocking_config();
                // SAFETY: valid pointers.
                let code = unsafe {
                    sys::ncclCommInitRankConfig(&raw mut comm, 2, id, number as i32, &raw mut config)
                };
                check(code);
                settle(comm);
                let rank = Rank { number, comm, context, stream };
                let (from, mut to, mut again) = (rank.filled(LONG), rank.zeros(LONG), rank.zeros(LONG));
                if number == 1 {
                    while !notified.load(SeqCst) {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                check(rank.all_reduce(&from, &mut to, &rank.stream));
                settle(comm);
                check(rank.all_reduce(&to, &mut again, &rank.stream));
                settle(comm);
                notified.store(true, SeqCst);
                assert_all(&rank.stream, &again, 6.0);
                // SAFETY: a communicator.
                check(unsafe { sys::ncclCommFinalize(comm) });
                settle(comm);
                rank.destroy();
            });
        }
    });
}

/// `NCCL_CONFIG_INITIALIZER`, which is a macro in C, with `blocking` 0.
fn nonblocking_config() -> ncclConfig_t {
    const UNDEFINED: i32 = i32::MIN;
    // SAFETY: numbers and pointers, for all of which zero is a value.
    let mut config: ncclConfig_t = unsafe { std::mem::zeroed() };
    config.size = size_of::<ncclConfig_t>();
    config.magic = 0xcafe_beef;
    config.version = 21700;
    (config.cgaClusterSize, config.minCTAs, config.maxCTAs, config.splitShare) =
        (UNDEFINED, UNDEFINED, UNDEFINED, UNDEFINED);
    config
}

/// An abort ends an operation whose peer never calls, and the stream continues.
fn abort() {
    let aborted = Barrier::new(2);
    run_ranks(2, |rank| {
        if rank.number == 0 {
            let (from, mut to) = (rank.filled(LONG), rank.zeros(LONG));
            check(rank.all_reduce(&from, &mut to, &rank.stream));
            check(rank.all_reduce(&from, &mut to, &rank.stream));
            let copied = rank.stream.clone_dtod(&from).unwrap();
            thread::sleep(Duration::from_millis(100));
            // SAFETY: not used any more.
            check(unsafe { sys::ncclCommAbort(rank.comm) });
            assert_all(&rank.stream, &copied, 1.0);
        }
        aborted.wait();
        if rank.number == 1 {
            let mut state = ncclResult_t::ncclSuccess;
            // SAFETY: a communicator and a valid out-parameter.
            check(unsafe { sys::ncclCommGetAsyncError(rank.comm, &raw mut state) });
            assert_ne!(state, ncclResult_t::ncclSuccess, "the peer has aborted");
            // SAFETY: not used any more.
            check(unsafe { sys::ncclCommAbort(rank.comm) });
        }
    });
}

/// Destroying a communicator waits for its work.
fn destroy() {
    run_ranks(2, |rank| {
        let from = rank.filled(LONG);
        let mut sums: Vec<_> = (0..10).map(|_| rank.zeros(LONG)).collect();
        for sum in &mut sums {
            check(rank.all_reduce(&from, sum, &rank.stream));
        }
        let addresses: Vec<_> = sums.iter().map(|sum| sum.device_ptr(&rank.stream).0).collect();
        let context = Arc::clone(&rank.context);
        rank.destroy();
        // On a stream that nothing orders after the work but this wait.
        let stream = context.new_stream().unwrap();
        for address in addresses {
            let mut values = vec![0.0_f32; LONG];
            // SAFETY: as many values as the device memory has, which the wait below is for.
            unsafe { result::memcpy_dtoh_async(&mut values, address, stream.cu_stream()) }.unwrap();
            stream.synchronize().unwrap();
            assert!(values.iter().all(|value| *value == 3.0));
        }
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
        let peer = 1 - rank.number;
        let (from, mut to) = (rank.filled(LONG), two.alloc_zeros::<f32>(LONG).unwrap());
        // SAFETY: has no arguments.
        check(unsafe { sys::ncclGroupStart() });
        check(send(rank.comm, &from, peer, &one));
        check(receive(rank.comm, &mut to, peer, &two));
        // SAFETY: has no arguments.
        check(unsafe { sys::ncclGroupEnd() });
        let expected = (peer + 1) as f32;
        assert_all(&two, &to, expected);
        assert_all(&one, &to, expected);
        rank.destroy();
    });
}

/// Host memory that is not registered with CUDA is refused, and so is memory that was freed or is too short.
fn host_memory() {
    run_ranks(2, |rank| {
        let mut host = vec![0.0_f32; SHORT];
        let device = rank.zeros(SHORT);
        rank.stream.synchronize().unwrap();
        let (address, _read) = device.device_ptr(&rank.stream);
        let call = |from: *const c_void, to: *mut c_void, count| {
            // SAFETY: the operation is refused before it follows the pointers.
            unsafe {
                sys::ncclAllReduce(
                    from,
                    to,
                    count,
                    ncclFloat32,
                    ncclSum,
                    rank.comm,
                    rank.stream.cu_stream().cast(),
                )
            }
        };
        let in_host: *mut c_void = host.as_mut_ptr().cast();
        let on_device = address as *mut c_void;
        let invalid = ncclResult_t::ncclInvalidArgument;
        assert_eq!(call(in_host, on_device, SHORT), invalid);
        assert_eq!(call(on_device, in_host, SHORT), invalid);
        assert_eq!(call(on_device, on_device, 1 << 28), invalid, "too long");
        check(call(on_device, on_device, SHORT));
        rank.stream.synchronize().unwrap();
        drop(_read);
        rank.destroy();
    });
}

/// Two ranks on one device are refused.
fn one_device() {
    let id = unique_id();
    let codes: Vec<ncclResult_t> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|number| {
                scope.spawn(move || {
                    let _context = CudaContext::new(1).unwrap();
                    let mut comm = std::ptr::null_mut();
                    // SAFETY: a valid out-parameter.
                    unsafe { sys::ncclCommInitRank(&raw mut comm, 2, id, number) }
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(codes, [ncclResult_t::ncclInvalidUsage; 2]);
}

/// The scalar of a reduction in device memory is read when the operation runs.
fn device_scalar() {
    run_ranks(2, |rank| {
        let (from, mut to) = (rank.filled(LONG), rank.zeros(LONG));
        let mut scalar = rank.zeros(1);
        let mut op = ncclSum;
        {
            let (address, _written) = scalar.device_ptr_mut(&rank.stream);
            let residence = sys::ncclScalarResidence_t::ncclScalarDevice;
            // SAFETY: a scalar in device memory, which lives until the operation has run.
            check(unsafe {
                sys::ncclRedOpCreatePreMulSum(
                    &raw mut op,
                    address as *mut c_void,
                    ncclFloat32,
                    residence,
                    rank.comm,
                )
            });
        }
        // Written on the stream, before the operation.
        rank.stream.memcpy_htod(&[(rank.number + 2) as f32], &mut scalar).unwrap();
        {
            let (from, _read) = from.device_ptr(&rank.stream);
            let (to, _written) = to.device_ptr_mut(&rank.stream);
            // SAFETY: device memory of as many elements.
            check(unsafe {
                sys::ncclAllReduce(
                    from as *const c_void,
                    to as *mut c_void,
                    LONG,
                    ncclFloat32,
                    op,
                    rank.comm,
                    rank.stream.cu_stream().cast(),
                )
            });
        }
        assert_all(&rank.stream, &to, 2.0 + 6.0);
        rank.destroy();
    });
}

fn begin_capture(stream: &CudaStream) {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
}

/// Captures work on a stream of a rank. The program orders the uses of memory itself.
fn capture(stream: &Arc<CudaStream>, work: impl FnOnce()) -> CudaGraph {
    begin_capture(stream);
    work();
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap()
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
        let peer = 1 - rank.number;
        let (from, mut to) = (rank.filled(LONG), rank.zeros(LONG));
        rank.stream.synchronize().unwrap();
        begin_capture(&one);
        // SAFETY: has no arguments.
        check(unsafe { sys::ncclGroupStart() });
        check(send(rank.comm, &from, peer, &one));
        check(receive(rank.comm, &mut to, peer, &two));
        // SAFETY: has no arguments.
        assert_eq!(unsafe { sys::ncclGroupEnd() }, ncclResult_t::ncclInvalidUsage);
        drop(one.end_capture(CUgraphInstantiate_flags(0)).unwrap());
        check(rank.all_reduce(&from, &mut to, &two));
        assert_all(&two, &to, 3.0);
        rank.destroy();
    });
}

//! Buffers and streams of the crate cudarc in operations.
#![allow(unsafe_code)] // A view without a guard.

#[path = "../cuda_crate/mod.rs"]
mod cuda_crate;

use std::process::ExitCode;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use cuda_crate::{LENGTH, Needs, assert_other_device, cases, is_emulated, run_ranks, run_unchecked};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use libnccl::buffer::{AnyBuffer, MemorySpace};
use libnccl::error::InvalidArgumentKind;
use libnccl::{Communicator, Context, DataType, Error, Nccl, ReduceOp, Slice, SliceMut, StreamRef};

/// True if ranks that are threads can share a device, and thus a context. cudarc copies from and to pageable memory, which waits with
/// the context locked: the other rank needs it for its call.
const SHARES_A_DEVICE: bool = false;

/// Copies values to memory that is allocated and freed on the stream.
fn upload(stream: &Arc<CudaStream>, values: &[f32]) -> CudaSlice<f32> {
    stream.clone_htod(values).unwrap()
}

/// Allocates memory on the stream, and writes zeros there.
fn zeros(stream: &Arc<CudaStream>, length: usize) -> CudaSlice<f32> {
    stream.alloc_zeros(length).unwrap()
}

/// Reads on the stream, after the work on the buffer.
fn read(stream: &Arc<CudaStream>, buffer: &CudaSlice<f32>) -> Vec<f32> {
    stream.clone_dtoh(buffer).unwrap()
}

/// Communicators from before the process loads CUDA: of two ranks and their children, and one that has worked on host memory.
static EARLY: Mutex<Option<(Vec<[Communicator; 2]>, Communicator)>> = Mutex::new(None);

fn main() -> ExitCode {
    if let Some(code) = cuda_crate::run_with_libraries() {
        return code;
    }
    if is_emulated() {
        let nccl = Nccl::load().unwrap();
        let of_host = nccl.communicator(1, 0, &nccl.unique_id().unwrap()).init().unwrap();
        of_host.all_reduce_in_place(&mut [7], ReduceOp::Sum, StreamRef::DEFAULT).unwrap();
        let split = |comm: Communicator| {
            let child = comm.split(Some(0), 0).init().unwrap().unwrap();
            [comm, child]
        };
        let threads =
            nccl.init_all(&[0, 1]).unwrap().into_iter().map(|comm| thread::spawn(move || split(comm)));
        let threads: Vec<_> = threads.collect();
        let of_ranks = threads.into_iter().map(|rank| rank.join().unwrap()).collect();
        *EARLY.lock().unwrap() = Some((of_ranks, of_host));
    }
    let two_devices = cases![
        views_are_sent_and_received,
        bytes_of_a_runtime_type_are_summed_if_aligned,
        view_of_another_device_is_invalid_argument,
        stream_per_thread_is_invalid_argument,
        captured_operation_refuses_slices_and_takes_nccl_memory,
    ];
    let emulated =
        cases![communicators_from_before_cuda_is_loaded_work_on_devices, views_without_guards_are_a_race];
    cuda_crate::main(&[(Needs::Emulation, emulated), (Needs::TwoDevices, two_devices)])
}

fn communicators_from_before_cuda_is_loaded_work_on_devices() {
    let (of_ranks, of_host) = EARLY.lock().unwrap().take().unwrap();
    thread::scope(|scope| {
        for comms in of_ranks {
            scope.spawn(move || {
                let stream = CudaContext::new(comms[0].rank()).unwrap().new_stream().unwrap();
                for comm in comms {
                    let mut buffer = stream.clone_htod(&[comm.rank() as f32 + 1.0; 10]).unwrap();
                    comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &stream).unwrap();
                    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [3.0; 10]);
                    assert_eq!(comm.memory_space(), MemorySpace::Device);
                    comm.destroy().unwrap();
                }
            });
        }
    });
    let mut number = [7];
    of_host.all_reduce_in_place(&mut number, ReduceOp::Sum, StreamRef::DEFAULT).unwrap();
    assert_eq!((number, of_host.memory_space()), ([7], MemorySpace::Host));
}

fn views_are_sent_and_received() {
    run_ranks(0, |rank| {
        let mut buffer = rank.other.clone_htod(&rank.values(LENGTH)).unwrap();
        rank.be_late();
        if rank.comm.rank() == 0 {
            rank.comm.send(buffer.slice(..100), 1, &rank.stream).unwrap();
            rank.comm.send(&buffer.slice_mut(100..300), 1, &rank.stream).unwrap();
        } else {
            rank.comm.recv(buffer.slice_mut(200..300), 0, &rank.stream).unwrap();
            let mut view = buffer.slice_mut(..200);
            rank.comm.recv(&mut view, 0, &rank.stream).unwrap();
            let received = rank.other.clone_dtoh(&buffer).unwrap();
            assert_eq!((&received[..300], received[300]), (&[1.0; 300][..], 2.0));
        }
    });
}

/// The buffers are dropped right after the call: their guards are kept, as with typed buffers.
fn bytes_of_a_runtime_type_are_summed_if_aligned() {
    run_ranks(0, |rank| {
        let bytes = |number: i32| number.to_ne_bytes().repeat(LENGTH);
        let send = rank.other.clone_htod(&bytes(rank.comm.rank() as i32 + 1000)).unwrap();
        let mut recv = rank.other.clone_htod(&bytes(0)).unwrap();
        let halves = AnyBuffer::new(DataType::Float16, recv.slice_mut(3..7));
        let error = rank.comm.all_reduce_in_place(halves, ReduceOp::Sum, &rank.stream).unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with("3 is not a multiple of 2, the size of half"), "{text}");
        let (from, to) = (AnyBuffer::new(DataType::Int32, &send), AnyBuffer::new(DataType::Int32, &mut recv));
        rank.be_late();
        rank.comm.all_reduce(from, to, ReduceOp::Sum, &rank.stream).unwrap();
        let words = AnyBuffer::new(DataType::Uint32, recv.slice_mut(4..8));
        rank.comm.all_reduce_in_place(words, ReduceOp::Sum, &rank.stream).unwrap();
        drop(send);
        rank.overwrite_free_memory();
        let expected = [&bytes(2001)[..4], &4002_i32.to_ne_bytes(), &bytes(2001)[8..]].concat();
        assert_eq!(rank.other.clone_dtoh(&recv).unwrap(), expected);
    });
}

fn view_of_another_device_is_invalid_argument() {
    run_ranks(0, |rank| {
        let peer = 1 - rank.comm.rank();
        let foreign = CudaContext::new(peer).unwrap().default_stream();
        let mut buffer = foreign.alloc_zeros::<f32>(8).unwrap();
        for stream in [StreamRef::DEFAULT, (&rank.stream).into()] {
            let result = rank.comm.all_reduce_in_place(buffer.slice_mut(1..), ReduceOp::Sum, stream);
            assert_other_device(result, "buffer", peer, rank.comm.rank());
        }
    });
}

fn assert_problem(result: libnccl::Result<()>, kind: InvalidArgumentKind, problem: &str) {
    match result.unwrap_err() {
        Error::InvalidArgument { kind: found, problem: text, .. } => {
            assert_eq!((found, &*text), (kind, problem));
        }
        error => panic!("{error}"),
    }
}

/// Its handle means another stream on the thread that drops a buffer, and on the one that NCCL launches kernels on.
fn stream_per_thread_is_invalid_argument() {
    run_ranks(0, |rank| {
        let per_thread = rank.context.per_thread_stream();
        let mut own = rank.stream.clone_htod(&rank.values(8)).unwrap();
        let refused = |result| {
            let problem = "the stream's handle is 2, CUDA's default stream of each thread; expected a stream that is the same \
                           on all threads";
            assert_problem(result, InvalidArgumentKind::Address, problem);
        };
        refused(rank.comm.all_reduce_in_place(&mut own, ReduceOp::Sum, &per_thread));
        let tenfold = rank.comm.pre_mul_sum(10.0_f32).unwrap();
        refused(rank.comm.all_reduce_in_place(&mut own, &tenfold, &per_thread));
        let mut buffer = per_thread.clone_htod(&rank.values(8)).unwrap();
        let refused = |result| {
            let problem = "a buffer is not ready: its stream is cudarc's per_thread_stream, which is another one on each thread";
            assert_problem(result, InvalidArgumentKind::NotReady, problem);
        };
        for stream in [StreamRef::from(&per_thread), (&rank.stream).into()] {
            refused(rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, stream));
            refused(rank.comm.all_reduce_in_place(buffer.slice_mut(1..), ReduceOp::Sum, stream));
        }
        // The communicators are as they were.
        rank.comm.all_reduce_in_place(&mut own, ReduceOp::Sum, &rank.stream).unwrap();
        assert_eq!(rank.stream.clone_dtoh(&own).unwrap(), [3.0; 8]);
    });
}

fn captured_operation_refuses_slices_and_takes_nccl_memory() {
    run_ranks(0, |rank| {
        let mut slice = rank.stream.clone_htod(&rank.values(8)).unwrap();
        rank.context.make_current().unwrap();
        let mut sums = rank.nccl.alloc::<f32>(8).unwrap();
        let (address, _) = slice.device_ptr(&rank.stream);
        // SAFETY: memory of 8 elements, which lives until the last launch of the graph has run.
        let view = unsafe { Slice::from_device_ptr(address as *const f32, 8) };
        rank.context.synchronize().unwrap();
        rank.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let refused = rank.comm.all_reduce_in_place(&mut slice, ReduceOp::Sum, &rank.stream);
        rank.comm.all_reduce(view, &mut sums, ReduceOp::Sum, &rank.stream).unwrap();
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = rank.stream.end_capture(flags).unwrap().unwrap();
        let problem = "a buffer is not ready: a CUDA graph captures the operation, and cudarc may free the memory before the \
                       graph is launched";
        assert_problem(refused, InvalidArgumentKind::NotReady, problem);
        for _ in 0..2 {
            graph.launch().unwrap();
        }
        rank.comm.all_reduce_in_place(&mut slice, ReduceOp::Sum, &rank.stream).unwrap();
        rank.comm.all_reduce_in_place(&mut sums, ReduceOp::Sum, &rank.stream).unwrap();
        rank.comm.all_reduce(&sums, &mut slice, ReduceOp::Max, &rank.stream).unwrap();
        assert_eq!(rank.stream.clone_dtoh(&slice).unwrap(), [6.0; 8]);
    });
}

// The cases above rely on this: without the guards, the same accesses are reported. Uses separate devices, whose contexts
// return an error from then on.
fn views_without_guards_are_a_race() {
    // Without the barrier, a rank that has synchronized would order the other rank's later work, and a rank that ends would abort
    // its communicator, which discards the other rank's operation before it runs.
    let both = Barrier::new(2);
    run_unchecked(6, |rank| {
        let send = rank.other.clone_htod(&rank.values(LENGTH)).unwrap();
        let mut recv = rank.stream.alloc_zeros::<f32>(LENGTH).unwrap();
        rank.context.synchronize().unwrap();
        rank.be_late();
        let (from, _) = send.device_ptr(&rank.other);
        let (to, _) = recv.device_ptr_mut(&rank.stream);
        // SAFETY: memory of as many elements, which lives until the context has been synchronized.
        let (from, to) = unsafe {
            (
                Slice::from_device_ptr(from as *const f32, LENGTH),
                SliceMut::from_device_ptr(to as *mut f32, LENGTH),
            )
        };
        let _ = rank.comm.all_reduce(from, to, ReduceOp::Sum, &rank.stream);
        drop(send);
        both.wait();
        let synchronized = rank.context.synchronize();
        both.wait();
        assert!(synchronized.is_err(), "a free without an order is an error");
    });
}

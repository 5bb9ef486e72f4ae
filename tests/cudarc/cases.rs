#![allow(unsafe_code)] // A view without a guard.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut};
use libnccl::{
    Communicator, Config, DeviceSlice, DeviceSliceMut, Error, MemorySpace, Nccl, ReduceOp, StreamRef,
};

/// The elements of a buffer: as many that the work outlasts the call.
const LENGTH: usize = 1 << 16;

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) const CASES: &[(&str, fn())] = &[$((stringify!($name), $name as fn())),*];
    };
}

cases! {
    slices_of_the_operations_stream_are_summed,
    slices_of_other_streams_are_summed,
    slices_dropped_straight_after_the_call_are_summed,
    slice_reused_on_its_own_stream_after_the_call_is_summed,
    slices_on_the_default_stream_are_summed,
    views_are_sent_and_received,
    views_in_a_group_are_ordered_until_its_end,
    slice_of_another_device_is_invalid_argument,
    stream_of_another_device_is_invalid_argument,
    pre_mul_sum_of_slices_of_other_streams_has_its_value,
    memory_of_nccl_is_allocated_on_the_context,
    id_is_that_of_cudarc,
    views_without_guards_are_a_race,
}

struct Rank {
    nccl: Nccl,
    comm: Communicator,
    context: Arc<CudaContext>,
    /// The stream of operations.
    stream: Arc<CudaStream>,
    /// The stream of buffers.
    other: Arc<CudaStream>,
}

impl Rank {
    /// Sleeps on rank 1, which lets the calls of rank 0 return before their operations can run.
    fn be_late(&self) {
        if self.comm.rank() == 1 {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns elements of one more than the rank.
    fn values(&self, length: usize) -> Vec<f32> {
        vec![(self.comm.rank() + 1) as f32; length]
    }

    /// Writes new memory on the stream of buffers, where memory that was freed too early would be used again.
    fn overwrite_free_memory(&self) {
        for _ in 0..4 {
            drop(self.other.clone_htod(&vec![1000.0_f32; LENGTH]).unwrap());
        }
    }
}

/// Runs two ranks on two devices from `first` on, and checks that no order was missing.
fn run_ranks(first: usize, body: impl Fn(&Rank) + Sync) {
    run_unchecked(first, |rank| {
        body(rank);
        rank.context.synchronize().expect("no two accesses lack an order");
    });
}

fn run_unchecked(first: usize, body: impl Fn(&Rank) + Sync) {
    // CUDA before NCCL, which has device memory then.
    CudaContext::new(first).unwrap();
    let nccl = Nccl::load().unwrap();
    assert_eq!(nccl.memory_space(), MemorySpace::Device);
    let id = nccl.unique_id().unwrap();
    thread::scope(|scope| {
        for rank in 0..2 {
            let (body, nccl) = (&body, nccl.clone());
            scope.spawn(move || {
                let context = CudaContext::new(first + rank).unwrap();
                let comm = nccl.init_rank_on(&context, 2, rank, &id, &Config::new()).unwrap();
                assert_eq!(comm.device(), (first + rank) as i32);
                let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
                body(&Rank { nccl, comm, context, stream, other });
            });
        }
    });
}

fn slices_of_the_operations_stream_are_summed() {
    run_ranks(0, |rank| {
        let send = rank.stream.clone_htod(&rank.values(LENGTH)).unwrap();
        let mut recv = rank.stream.alloc_zeros::<f32>(LENGTH).unwrap();
        rank.be_late();
        rank.comm.all_reduce(&send, &mut recv, ReduceOp::Sum, &rank.stream).unwrap();
        rank.comm.all_reduce_in_place(&mut recv, ReduceOp::Sum, &*rank.stream).unwrap();
        assert_eq!(rank.stream.clone_dtoh(&recv).unwrap(), [6.0; LENGTH]);
    });
}

fn slices_of_other_streams_are_summed() {
    run_ranks(0, |rank| {
        let third = rank.context.new_stream().unwrap();
        let send = rank.other.clone_htod(&rank.values(LENGTH)).unwrap();
        let mut recv = third.alloc_zeros::<f32>(LENGTH).unwrap();
        rank.be_late();
        rank.comm.all_reduce(&send, &mut recv, ReduceOp::Sum, &rank.stream).unwrap();
        // Each on a stream that has to wait for the operation.
        assert_eq!(third.clone_dtoh(&recv).unwrap(), [3.0; LENGTH]);
        assert_eq!(rank.other.clone_dtoh(&recv).unwrap(), [3.0; LENGTH]);
    });
}

fn slices_dropped_straight_after_the_call_are_summed() {
    run_ranks(0, |rank| {
        let mut sums = rank.stream.alloc_zeros::<f32>(LENGTH).unwrap();
        let mut unused = rank.other.alloc_zeros::<f32>(LENGTH).unwrap();
        let send = rank.other.clone_htod(&rank.values(LENGTH)).unwrap();
        rank.be_late();
        rank.comm.all_reduce(&send, &mut sums, ReduceOp::Sum, &rank.stream).unwrap();
        rank.comm.all_reduce(&send, &mut unused, ReduceOp::Sum, &rank.stream).unwrap();
        drop((send, unused));
        rank.overwrite_free_memory();
        assert_eq!(rank.stream.clone_dtoh(&sums).unwrap(), [3.0; LENGTH]);
    });
}

fn slice_reused_on_its_own_stream_after_the_call_is_summed() {
    run_ranks(0, |rank| {
        let mut buffer = rank.other.clone_htod(&rank.values(LENGTH)).unwrap();
        let mut sums = rank.stream.alloc_zeros::<f32>(LENGTH).unwrap();
        rank.be_late();
        rank.comm.all_reduce(&buffer, &mut sums, ReduceOp::Sum, &rank.stream).unwrap();
        rank.other.memset_zeros(&mut buffer).unwrap();
        rank.comm.broadcast_in_place(&mut buffer, 0, &rank.stream).unwrap();
        assert_eq!(rank.stream.clone_dtoh(&sums).unwrap(), [3.0; LENGTH]);
        assert_eq!(rank.other.clone_dtoh(&buffer).unwrap(), [0.0; LENGTH]);
    });
}

fn slices_on_the_default_stream_are_summed() {
    run_ranks(0, |rank| {
        let default = rank.context.default_stream();
        let mut buffer = default.clone_htod(&rank.values(LENGTH)).unwrap();
        let mut other = rank.other.clone_htod(&rank.values(LENGTH)).unwrap();
        rank.be_late();
        rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &default).unwrap();
        rank.comm.all_reduce_in_place(&mut other, ReduceOp::Max, StreamRef::DEFAULT).unwrap();
        assert_eq!(default.clone_dtoh(&buffer).unwrap(), [3.0; LENGTH]);
        assert_eq!(rank.other.clone_dtoh(&other).unwrap(), [2.0; LENGTH]);
    });
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

fn views_in_a_group_are_ordered_until_its_end() {
    run_ranks(0, |rank| {
        let send = rank.other.clone_htod(&rank.values(LENGTH)).unwrap();
        let mut recv = rank.other.alloc_zeros::<f32>(LENGTH).unwrap();
        let (peer, half) = (1 - rank.comm.rank(), LENGTH / 2);
        rank.be_late();
        let (first, second) = recv.split_at_mut(half);
        rank.nccl
            .group(|g| {
                g.send(&rank.comm, send.slice(..half), peer, &rank.stream)?;
                g.recv(&rank.comm, first, peer, &rank.stream)?;
                g.send(&rank.comm, send.slice(half..), peer, &rank.stream)?;
                g.recv(&rank.comm, second, peer, &rank.stream)
            })
            .unwrap();
        drop(send);
        rank.overwrite_free_memory();
        assert_eq!(rank.other.clone_dtoh(&recv).unwrap(), [(peer + 1) as f32; LENGTH]);
    });
}

/// Checks that an operation is refused, with the devices in the text.
fn assert_other_device(result: libnccl::Result<()>, found: usize, expected: usize) {
    match result {
        Err(error @ Error::InvalidArgument { .. }) => assert_eq!(
            error.to_string(),
            format!(
                "all_reduce_in_place: a buffer or stream is of device {found}; the communicator is of device {expected}"
            )
        ),
        other => panic!("{other:?}"),
    }
}

fn slice_of_another_device_is_invalid_argument() {
    run_ranks(0, |rank| {
        let peer = 1 - rank.comm.rank();
        let foreign = CudaContext::new(peer).unwrap().default_stream();
        let mut buffer = foreign.alloc_zeros::<f32>(8).unwrap();
        // Of the default streams, of all devices, the handle is the same.
        for stream in [StreamRef::DEFAULT, (&rank.stream).into()] {
            let result = rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, stream);
            assert_other_device(result, peer, rank.comm.rank());
            let result = rank.comm.all_reduce_in_place(buffer.slice_mut(1..), ReduceOp::Sum, stream);
            assert_other_device(result, peer, rank.comm.rank());
        }
    });
}

fn stream_of_another_device_is_invalid_argument() {
    run_ranks(0, |rank| {
        let peer = 1 - rank.comm.rank();
        let foreign = CudaContext::new(peer).unwrap();
        let mut buffer = rank.stream.alloc_zeros::<f32>(8).unwrap();
        for stream in [foreign.default_stream(), foreign.new_stream().unwrap()] {
            let result = rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &stream);
            assert_other_device(result, peer, rank.comm.rank());
        }
    });
}

fn pre_mul_sum_of_slices_of_other_streams_has_its_value() {
    run_ranks(0, |rank| {
        let mut buffer = rank.other.clone_htod(&rank.values(LENGTH)).unwrap();
        let tenfold = rank.comm.pre_mul_sum(10.0_f32).unwrap();
        rank.be_late();
        tenfold.all_reduce_in_place(&mut buffer, &rank.stream).unwrap();
        assert_eq!(rank.other.clone_dtoh(&buffer).unwrap(), [30.0; LENGTH]);
    });
}

fn memory_of_nccl_is_allocated_on_the_context() {
    run_ranks(0, |rank| {
        // Another device is current before.
        CudaContext::new(1 - rank.comm.rank()).unwrap().bind_to_thread().unwrap();
        let send = rank.other.clone_htod(&rank.values(8)).unwrap();
        let mut sums = rank.nccl.alloc_on::<f32>(&rank.context, 8).unwrap();
        rank.comm.all_reduce(&send, &mut sums, ReduceOp::Sum, &rank.stream).unwrap();
        rank.comm.barrier(&mut sums, &rank.stream).unwrap();
        rank.stream.synchronize().unwrap();
        // SAFETY: the work has run.
        unsafe { sums.assume_idle() };
        sums.free().unwrap();
    });
}

fn id_is_that_of_cudarc() {
    CudaContext::new(0).unwrap();
    let id = Nccl::load().unwrap().unique_id().unwrap();
    // As the crate's `Id::uninit` takes it, and `Id::internal` returns it.
    let chars: [std::ffi::c_char; 128] = id.to_c_chars();
    assert_eq!(libnccl::UniqueId::from_c_chars(chars), id);
}

// What the cases above rely on: without the guards, the same accesses are reported. On devices of its own, whose contexts
// return an error from then on.
fn views_without_guards_are_a_race() {
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
                DeviceSlice::from_raw_parts(from as *const f32, LENGTH),
                DeviceSliceMut::from_raw_parts(to as *mut f32, LENGTH),
            )
        };
        let _ = rank.comm.all_reduce(from, to, ReduceOp::Sum, &rank.stream);
        drop(send);
        rank.context.synchronize().expect_err("a free without an order is an error");
    });
}

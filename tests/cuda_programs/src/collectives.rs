//! Collectives, sends and receives between GPUs, with the safe interface of the crate cudarc. Every value is checked.

use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nccl::{Comm, Id, ReduceOp, group_end, group_start};

use crate::rank::assert_all;

/// The elements of a buffer: some megabytes, so that the work outlasts the call.
const LENGTH: usize = 1 << 18;

pub(crate) fn run(ranks: usize) {
    let id = Id::new().unwrap();
    thread::scope(|scope| {
        (0..ranks).for_each(|rank| drop(scope.spawn(move || thread_of_a_rank(rank, ranks, id))));
    });
    one_thread(ranks);
}

/// The value of a rank's elements.
fn value(rank: usize) -> f32 {
    (rank + 1) as f32
}

fn sum(ranks: usize) -> f32 {
    (0..ranks).map(value).sum()
}

fn thread_of_a_rank(rank: usize, ranks: usize, id: Id) {
    let context = CudaContext::new(rank).unwrap();
    // One rank uses the default stream.
    let stream = if rank == 0 { context.default_stream() } else { context.new_stream().unwrap() };
    let comm = Comm::from_rank(Arc::clone(&stream), rank, ranks, id).unwrap();
    assert_eq!((comm.rank(), comm.world_size()), (rank, ranks));
    let zeros = |length| stream.alloc_zeros::<f32>(length).unwrap();
    let own = stream.clone_htod(&vec![value(rank); LENGTH]).unwrap();
    let mut result = zeros(LENGTH);

    comm.all_reduce(&own, &mut result, &ReduceOp::Sum).unwrap();
    // In order on the stream, so without a wait in between.
    comm.all_reduce_in_place(&mut result, &ReduceOp::Max).unwrap();
    assert_all(&stream, &result, sum(ranks));
    // A ring: each rank sends to the next and receives from the one before.
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let mut group = comm.group();
    group.send(own.as_view(), next as i32).unwrap();
    group.recv(result.as_view_mut(), before as i32).unwrap();
    drop(group);
    assert_all(&stream, &result, value(before));

    // Copies on one stream while another communicates, with events in between.
    let copies = context.new_stream().unwrap();
    let reduce = |step: usize| {
        let input = copies.clone_htod(&vec![value(rank + step); LENGTH]).unwrap();
        let mut output = copies.alloc_zeros::<f32>(LENGTH).unwrap();
        stream.join(&copies).unwrap();
        comm.all_reduce(&input, &mut output, &ReduceOp::Sum).unwrap();
        output
    };
    let outputs: Vec<_> = (0..8).map(reduce).collect();
    copies.join(&stream).unwrap();
    for (step, output) in outputs.iter().enumerate() {
        assert_all(&copies, output, sum(ranks) + (step * ranks) as f32);
    }
}

/// One thread for all GPUs, with groups.
fn one_thread(ranks: usize) {
    let stream = |device| CudaContext::new(device).unwrap().new_stream().unwrap();
    let streams: Vec<Arc<CudaStream>> = (0..ranks).map(stream).collect();
    let comms = Comm::from_devices(streams.clone()).unwrap();
    let input =
        |(rank, stream): (usize, &Arc<CudaStream>)| stream.clone_htod(&vec![value(rank); LENGTH]).unwrap();
    let inputs: Vec<_> = streams.iter().enumerate().map(input).collect();
    let mut outputs: Vec<_> =
        streams.iter().map(|stream| stream.alloc_zeros::<f32>(LENGTH).unwrap()).collect();
    group_start().unwrap();
    for ((comm, input), output) in comms.iter().zip(&inputs).zip(&mut outputs) {
        comm.all_reduce(input, output, &ReduceOp::Sum).unwrap();
    }
    group_end().unwrap();
    streams.iter().zip(&outputs).for_each(|(stream, output)| assert_all(stream, output, sum(ranks)));

    // Each rank sends its block to the rank opposite.
    group_start().unwrap();
    for (rank, ((comm, input), output)) in comms.iter().zip(&inputs).zip(&mut outputs).enumerate() {
        comm.send(input, (ranks - 1 - rank) as i32).unwrap();
        comm.recv(output, (ranks - 1 - rank) as i32).unwrap();
    }
    group_end().unwrap();
    for (rank, (stream, output)) in streams.iter().zip(&outputs).enumerate() {
        assert_all(stream, output, value(ranks - 1 - rank));
    }
}

//! Collectives, sends and receives between GPUs, with the safe interface of the crate cudarc. Every value is checked.

use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaContext, CudaStream, DriverError};
use cudarc::nccl::{Comm, Id, ReduceOp, group_end, group_start};

use crate::error::{Result, nccl};

/// The elements of a buffer: some megabytes, so that the work outlasts the call.
const LENGTH: usize = 1 << 18;

pub(crate) fn run(devices: usize) -> Result {
    a_thread_per_device(devices)?;
    one_thread(devices)
}

/// The elements after which a pattern repeats.
const PERIOD: usize = 101;

/// Data that differs between ranks, in numbers that sums keep exact.
fn pattern(rank: usize, length: usize) -> Vec<f32> {
    repeated((0..PERIOD).map(|index| ((index * 7 + rank * 13) % PERIOD) as f32).collect(), length)
}

fn repeated(period: Vec<f32>, length: usize) -> Vec<f32> {
    let mut values = period.repeat(length.div_ceil(PERIOD));
    values.truncate(length);
    values
}

/// Returns the sum of the patterns of ranks.
fn sum(ranks: impl Iterator<Item = usize>, length: usize) -> Vec<f32> {
    let mut sum = vec![0.0; PERIOD];
    for rank in ranks {
        for (sum, value) in sum.iter_mut().zip(pattern(rank, PERIOD)) {
            *sum += value;
        }
    }
    repeated(sum, length)
}

fn a_thread_per_device(ranks: usize) -> Result {
    let (all, halves) = (nccl(Id::new())?, [nccl(Id::new())?, nccl(Id::new())?]);
    let threads: Vec<_> =
        (0..ranks).map(|rank| thread::spawn(move || rank_of_a_thread(rank, ranks, all, halves))).collect();
    threads.into_iter().try_for_each(|thread| thread.join().expect("a rank panicked"))
}

fn rank_of_a_thread(rank: usize, ranks: usize, all: Id, halves: [Id; 2]) -> Result {
    let context = CudaContext::new(rank)?;
    // One rank uses the default stream.
    let stream = if rank == 0 { context.default_stream() } else { context.new_stream()? };
    let comm = nccl(Comm::from_rank(Arc::clone(&stream), rank, ranks, all))?;
    assert_eq!((comm.rank(), comm.world_size()), (rank, ranks));

    let own = stream.clone_htod(&pattern(rank, LENGTH))?;
    let mut result = stream.alloc_zeros::<f32>(LENGTH)?;
    nccl(comm.all_reduce(&own, &mut result, &ReduceOp::Sum))?;
    // In order on the stream, so without a wait in between.
    nccl(comm.all_reduce_in_place(&mut result, &ReduceOp::Max))?;
    assert_eq!(stream.clone_dtoh(&result)?, sum(0..ranks, LENGTH));

    let root = ranks - 1;
    let send = (rank == root).then_some(&own);
    nccl(comm.broadcast(send, &mut result, root as i32))?;
    assert_eq!(stream.clone_dtoh(&result)?, pattern(root, LENGTH));

    nccl(comm.reduce(&own, (rank == 0).then_some(&mut result), &ReduceOp::Min, 0))?;
    let reduced = stream.clone_dtoh(&result)?;
    if rank == 0 {
        let least = |index| (0..ranks).map(|rank| pattern(rank, PERIOD)[index]).fold(f32::MAX, f32::min);
        assert!((0..LENGTH).step_by(9973).all(|index| reduced[index] == least(index % PERIOD)));
    }

    let part = LENGTH / ranks;
    let whole = stream.clone_htod(&pattern(rank, part * ranks))?;
    let mut scattered = stream.alloc_zeros::<f32>(part)?;
    nccl(comm.reduce_scatter(&whole, &mut scattered, &ReduceOp::Sum))?;
    assert_eq!(stream.clone_dtoh(&scattered)?, sum(0..ranks, part * ranks)[rank * part..(rank + 1) * part]);

    let mut gathered = stream.alloc_zeros::<f32>(part * ranks)?;
    nccl(comm.all_gather(&scattered, &mut gathered))?;
    assert_eq!(stream.clone_dtoh(&gathered)?, sum(0..ranks, part * ranks));

    // A ring: each rank sends to the next and receives from the one before.
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    nccl(group_start())?;
    nccl(comm.send(&own, next as i32))?;
    nccl(comm.recv(&mut result, before as i32))?;
    nccl(group_end())?;
    assert_eq!(stream.clone_dtoh(&result)?, pattern(before, LENGTH));

    all_to_all(&comm, rank, ranks)?;
    halves_and_the_whole(&comm, rank, ranks, halves)?;
    overlapping_streams(&context, &comm, rank, ranks)
}

/// Each rank sends a part to each rank, itself among them, in a group.
fn all_to_all(comm: &Comm, rank: usize, ranks: usize) -> Result {
    let (part, stream) = (LENGTH / ranks, comm.stream());
    let own = stream.clone_htod(&pattern(rank, LENGTH))?;
    let part_of = |peer: usize| peer * part..(peer + 1) * part;
    let mut received = vec![];
    for _ in 0..ranks {
        received.push(stream.alloc_zeros::<f32>(part)?);
    }
    let mut group = comm.group();
    for (peer, buffer) in received.iter_mut().enumerate() {
        nccl(group.send(own.slice(part_of(peer)), peer as i32))?;
        nccl(group.recv(buffer.as_view_mut(), peer as i32))?;
    }
    drop(group);
    for (peer, buffer) in received.iter().enumerate() {
        assert_eq!(stream.clone_dtoh(buffer)?, pattern(peer, LENGTH)[part_of(rank)], "from rank {peer}");
    }
    Ok(())
}

/// Each half of the ranks has a communicator and a stream, which work at the same time as the whole communicator.
fn halves_and_the_whole(whole: &Comm, rank: usize, ranks: usize, ids: [Id; 2]) -> Result {
    let middle = ranks / 2;
    let (id, members) = if rank < middle { (ids[0], 0..middle) } else { (ids[1], middle..ranks) };
    let (stream, work) = (whole.context().new_stream()?, whole.stream());
    let half = nccl(Comm::from_rank(Arc::clone(&stream), rank - members.start, members.len(), id))?;
    let input = stream.clone_htod(&pattern(rank, LENGTH))?;
    let mut of_half = stream.alloc_zeros::<f32>(LENGTH)?;
    let mut of_whole = stream.alloc_zeros::<f32>(LENGTH)?;
    work.join(&stream)?;
    nccl(half.all_reduce(&input, &mut of_half, &ReduceOp::Sum))?;
    nccl(whole.all_reduce(&input, &mut of_whole, &ReduceOp::Sum))?;
    assert_eq!(stream.clone_dtoh(&of_half)?, sum(members, LENGTH));
    assert_eq!(work.clone_dtoh(&of_whole)?, sum(0..ranks, LENGTH));
    Ok(())
}

/// Copies on one stream while another communicates, with events in between.
fn overlapping_streams(context: &Arc<CudaContext>, comm: &Comm, rank: usize, ranks: usize) -> Result {
    const STEPS: usize = 8;
    let (copies, work) = (context.new_stream()?, comm.stream());
    let mut results = vec![];
    for step in 0..STEPS {
        let input = copies.clone_htod(&pattern(rank + step, LENGTH))?;
        let mut output = copies.alloc_zeros::<f32>(LENGTH)?;
        work.join(&copies)?;
        nccl(comm.all_reduce(&input, &mut output, &ReduceOp::Sum))?;
        results.push(output);
    }
    copies.join(&work)?;
    for (step, result) in results.iter().enumerate() {
        let expected = sum((0..ranks).map(|rank| rank + step), LENGTH);
        assert_eq!(copies.clone_dtoh(result)?, expected, "step {step}");
    }
    Ok(())
}

/// One thread for all GPUs, with groups.
fn one_thread(ranks: usize) -> Result {
    let streams: Vec<Arc<CudaStream>> = (0..ranks)
        .map(|device| CudaContext::new(device)?.new_stream())
        .collect::<Result<_, DriverError>>()?;
    let comms = nccl(Comm::from_devices(streams.clone()))?;
    let mut inputs = vec![];
    let mut outputs = vec![];
    for (rank, stream) in streams.iter().enumerate() {
        inputs.push(stream.clone_htod(&pattern(rank, LENGTH))?);
        outputs.push(stream.alloc_zeros::<f32>(LENGTH)?);
    }
    nccl(group_start())?;
    for ((comm, input), output) in comms.iter().zip(&inputs).zip(&mut outputs) {
        nccl(comm.all_reduce(input, output, &ReduceOp::Sum))?;
    }
    nccl(group_end())?;
    for (stream, output) in streams.iter().zip(&outputs) {
        assert_eq!(stream.clone_dtoh(output)?, sum(0..ranks, LENGTH));
    }

    // Each rank sends its block to the rank opposite.
    nccl(group_start())?;
    for (rank, ((comm, input), output)) in comms.iter().zip(&inputs).zip(&mut outputs).enumerate() {
        nccl(comm.send(input, (ranks - 1 - rank) as i32))?;
        nccl(comm.recv(output, (ranks - 1 - rank) as i32))?;
    }
    nccl(group_end())?;
    for (rank, (stream, output)) in streams.iter().zip(&outputs).enumerate() {
        assert_eq!(stream.clone_dtoh(output)?, pattern(ranks - 1 - rank, LENGTH));
    }
    Ok(())
}

//! Collectives and messages between GPUs, with the safe interface of the crate cudarc. Every value is checked.
//!
//! The argument is the number of GPUs.

use std::error::Error;
use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaContext, CudaStream, DriverError};
use cudarc::nccl::result::NcclError;
use cudarc::nccl::{Comm, Id, ReduceOp, group_end, group_start};

type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The elements of a buffer: some megabytes, so that the work outlasts the call.
const LENGTH: usize = 1 << 18;

fn main() -> Result {
    let devices: usize = std::env::args().nth(1).ok_or("the number of GPUs is missing")?.parse()?;
    assert!(devices <= CudaContext::device_count()? as usize, "fewer GPUs than {devices}");
    a_thread_per_device(devices)?;
    one_thread(devices)?;
    println!("ok");
    Ok(())
}

/// An error of NCCL, which cudarc gives no text.
fn nccl<T>(result: Result<T, NcclError>) -> Result<T> {
    result.map_err(|NcclError(code)| format!("NCCL returned {code:?}").into())
}

/// Data that differs between ranks, in numbers that sums keep exact.
fn pattern(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|index| ((index * 7 + rank * 13) % 101) as f32).collect()
}

/// Returns the sum of the patterns of all ranks.
fn sum(ranks: usize, length: usize) -> Vec<f32> {
    let mut sum = vec![0.0; length];
    for rank in 0..ranks {
        for (sum, value) in sum.iter_mut().zip(pattern(rank, length)) {
            *sum += value;
        }
    }
    sum
}

fn a_thread_per_device(ranks: usize) -> Result {
    let id = nccl(Id::new())?;
    let threads: Vec<_> =
        (0..ranks).map(|rank| thread::spawn(move || rank_of_a_thread(rank, ranks, id))).collect();
    threads.into_iter().try_for_each(|thread| thread.join().expect("a rank panicked"))
}

fn rank_of_a_thread(rank: usize, ranks: usize, id: Id) -> Result {
    let context = CudaContext::new(rank)?;
    // One rank uses the default stream.
    let stream = if rank == 0 { context.default_stream() } else { context.new_stream()? };
    let comm = nccl(Comm::from_rank(Arc::clone(&stream), rank, ranks, id))?;
    assert_eq!((comm.rank(), comm.world_size()), (rank, ranks));

    let own = stream.clone_htod(&pattern(rank, LENGTH))?;
    let mut result = stream.alloc_zeros::<f32>(LENGTH)?;
    nccl(comm.all_reduce(&own, &mut result, &ReduceOp::Sum))?;
    // In order on the stream, so without a wait in between.
    nccl(comm.all_reduce_in_place(&mut result, &ReduceOp::Max))?;
    assert_eq!(stream.clone_dtoh(&result)?, sum(ranks, LENGTH));

    let root = ranks - 1;
    let send = (rank == root).then_some(&own);
    nccl(comm.broadcast(send, &mut result, root as i32))?;
    assert_eq!(stream.clone_dtoh(&result)?, pattern(root, LENGTH));

    nccl(comm.reduce(&own, (rank == 0).then_some(&mut result), &ReduceOp::Min, 0))?;
    let reduced = stream.clone_dtoh(&result)?;
    if rank == 0 {
        let least = |index| (0..ranks).map(|rank| pattern(rank, LENGTH)[index]).fold(f32::MAX, f32::min);
        assert!((0..LENGTH).step_by(9973).all(|index| reduced[index] == least(index)));
    }

    let part = LENGTH / ranks;
    let whole = stream.clone_htod(&pattern(rank, part * ranks))?;
    let mut scattered = stream.alloc_zeros::<f32>(part)?;
    nccl(comm.reduce_scatter(&whole, &mut scattered, &ReduceOp::Sum))?;
    assert_eq!(stream.clone_dtoh(&scattered)?, sum(ranks, part * ranks)[rank * part..(rank + 1) * part]);

    let mut gathered = stream.alloc_zeros::<f32>(part * ranks)?;
    nccl(comm.all_gather(&scattered, &mut gathered))?;
    assert_eq!(stream.clone_dtoh(&gathered)?, sum(ranks, part * ranks));

    // A ring: each rank sends to the next and receives from the one before.
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    nccl(group_start())?;
    nccl(comm.send(&own, next as i32))?;
    nccl(comm.recv(&mut result, before as i32))?;
    nccl(group_end())?;
    assert_eq!(stream.clone_dtoh(&result)?, pattern(before, LENGTH));

    overlapping_streams(&context, &comm, rank, ranks)
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
        let expected: Vec<f32> =
            (0..LENGTH).map(|index| (0..ranks).map(|rank| pattern_at(rank + step, index)).sum()).collect();
        assert_eq!(copies.clone_dtoh(result)?, expected, "step {step}");
    }
    Ok(())
}

fn pattern_at(rank: usize, index: usize) -> f32 {
    ((index * 7 + rank * 13) % 101) as f32
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
        assert_eq!(stream.clone_dtoh(output)?, sum(ranks, LENGTH));
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

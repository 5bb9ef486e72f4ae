//! Collectives, sends and receives that are captured in graphs, with the safe interface of the crate cudarc. Every value is
//! checked.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::thread;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream};
use cudarc::nccl::{Comm, Id, ReduceOp, group_end, group_start};

use crate::error::{Result, nccl};

/// The elements of a buffer.
const LENGTH: usize = 1 << 16;
const LAUNCHES: usize = 5;

pub(crate) fn run(devices: usize) -> Result {
    a_graph_per_device(devices)?;
    one_graph(devices)
}

/// A device, and a stream of it, whose uses of memory the program orders itself: a capture may not wait for events from
/// before it.
fn device(ordinal: usize) -> Result<Arc<CudaStream>> {
    let context = CudaContext::new(ordinal)?;
    // SAFETY: each buffer is used on one stream at a time; the host waits before another one uses it.
    unsafe { context.disable_event_tracking() };
    Ok(context.new_stream()?)
}

fn capture(stream: &Arc<CudaStream>, work: impl FnOnce() -> Result) -> Result<CudaGraph> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let worked = work();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
    worked?;
    Ok(graph.ok_or("nothing was captured")?)
}

fn assert_all(stream: &Arc<CudaStream>, buffer: &CudaSlice<f32>, expected: f32) -> Result {
    let values = stream.clone_dtoh(buffer)?;
    stream.synchronize()?;
    match values.iter().position(|value| *value != expected) {
        None => Ok(()),
        Some(index) => Err(format!("{} at {index}, expected {expected}", values[index]).into()),
    }
}

fn a_graph_per_device(ranks: usize) -> Result {
    let id = nccl(Id::new())?;
    let threads: Vec<_> =
        (0..ranks).map(|rank| thread::spawn(move || rank_with_graphs(rank, ranks, id))).collect();
    threads.into_iter().try_for_each(|thread| thread.join().expect("a rank panicked"))
}

fn rank_with_graphs(rank: usize, ranks: usize, id: Id) -> Result {
    let stream = device(rank)?;
    let comm = nccl(Comm::from_rank(Arc::clone(&stream), rank, ranks, id))?;
    let mut input = stream.alloc_zeros::<f32>(LENGTH)?;
    let mut total = stream.alloc_zeros::<f32>(LENGTH)?;
    let mut passed_on = stream.alloc_zeros::<f32>(LENGTH)?;
    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);

    let sum = capture(&stream, || nccl(comm.all_reduce(&input, &mut total, &ReduceOp::Sum)).map(|_| ()))?;
    let ring = capture(&stream, || {
        nccl(group_start())?;
        nccl(comm.send(&total, next as i32))?;
        nccl(comm.recv(&mut passed_on, previous as i32))?;
        nccl(group_end())?;
        nccl(comm.all_reduce_in_place(&mut passed_on, &ReduceOp::Max))?;
        Ok(())
    })?;
    stream.synchronize()?;
    assert_all(&stream, &total, 0.0)?;

    let ranks_sum = (ranks * (ranks - 1) / 2) as f32;
    for round in 0..LAUNCHES {
        stream.memcpy_htod(&vec![(rank + round) as f32; LENGTH], &mut input)?;
        sum.launch()?;
        ring.launch()?;
        let expected = ranks_sum + (ranks * round) as f32;
        assert_all(&stream, &total, expected)?;
        assert_all(&stream, &passed_on, expected)?;
        // Not captured, between launches.
        nccl(comm.all_reduce_in_place(&mut total, &ReduceOp::Sum))?;
        assert_all(&stream, &total, expected * ranks as f32)?;
    }

    // In either order.
    if rank == 0 {
        drop((sum, ring, comm));
    } else {
        drop((comm, ring, sum));
    }
    Ok(())
}

/// One thread captures the work of all devices in one graph: their streams wait for the first one, and it for them.
fn one_graph(ranks: usize) -> Result {
    let streams = (0..ranks).map(device).collect::<Result<Vec<_>>>()?;
    let comms = nccl(Comm::from_devices(streams.clone()))?;
    let mut buffers =
        streams.iter().map(|stream| stream.alloc_zeros::<f32>(LENGTH)).collect::<Result<Vec<_>, _>>()?;
    let (first, others) = streams.split_first().ok_or("no GPU")?;
    streams.iter().try_for_each(|stream| stream.synchronize())?;
    first.context().bind_to_thread()?;
    let graph = capture(first, || {
        let fork = first.record_event(None)?;
        others.iter().try_for_each(|other| other.wait(&fork))?;
        nccl(group_start())?;
        for (comm, buffer) in comms.iter().zip(&mut buffers) {
            nccl(comm.all_reduce_in_place(buffer, &ReduceOp::Sum))?;
        }
        nccl(group_end())?;
        for other in others {
            first.wait(&other.record_event(None)?)?;
        }
        Ok(())
    })?;
    for round in 1..=LAUNCHES {
        for (rank, (stream, buffer)) in streams.iter().zip(&mut buffers).enumerate() {
            stream.memcpy_htod(&vec![(rank + round) as f32; LENGTH], buffer)?;
            stream.synchronize()?;
        }
        graph.launch()?;
        first.synchronize()?;
        for (stream, buffer) in streams.iter().zip(&buffers) {
            assert_all(stream, buffer, (ranks * (ranks - 1) / 2 + ranks * round) as f32)?;
        }
    }
    Ok(())
}

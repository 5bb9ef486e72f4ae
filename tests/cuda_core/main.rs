//! Buffers and streams of NVIDIA's crate cuda-core in operations.
#![allow(unsafe_code)] // Memory that is allocated on a stream.

#[path = "../cuda_crate/mod.rs"]
mod cuda_crate;

use std::process::ExitCode;
use std::sync::Arc;

use cuda_core::{CudaContext, CudaStream, DeviceBuffer, sys};
use cuda_crate::{LENGTH, Needs, assert_other_device, cases, run_ranks};
use libnccl::error::InvalidArgumentKind;
use libnccl::{Error, ReduceOp, StreamRef};

/// True if ranks that are threads can share a device, and thus a context.
const SHARES_A_DEVICE: bool = true;

/// Copies values to memory that is allocated and freed on the stream.
fn upload(stream: &Arc<CudaStream>, values: &[f32]) -> DeviceBuffer<f32> {
    // SAFETY: it is written before it is read.
    let mut buffer = unsafe { DeviceBuffer::uninitialized_async(stream, values.len()) }.unwrap();
    buffer.copy_from_host(stream, values).unwrap();
    buffer
}

/// Allocates memory on the stream, and writes zeros there.
fn zeros(stream: &Arc<CudaStream>, length: usize) -> DeviceBuffer<f32> {
    // SAFETY: as above.
    let mut buffer = unsafe { DeviceBuffer::uninitialized_async(stream, length) }.unwrap();
    buffer.zero_async(stream).unwrap();
    buffer
}

/// Reads on the stream, after the work on the buffer.
fn read(stream: &Arc<CudaStream>, buffer: &DeviceBuffer<f32>) -> Vec<f32> {
    // cuda-core refuses to read on one stream while another one writes.
    stream.context().synchronize().unwrap();
    buffer.to_host_vec(stream).unwrap()
}

fn main() -> ExitCode {
    let one_device = cases![
        buffer_in_use_is_refused_to_another_stream_until_the_operation_has_run,
        buffer_leased_for_good_is_invalid_argument,
        views_are_sent,
        captured_operation_leaves_the_buffer_free,
    ];
    cuda_crate::main(&[
        (Needs::OneDevice, one_device),
        (Needs::TwoDevices, cases![view_of_another_device_is_invalid_argument]),
    ])
}

/// cuda-core orders no accesses: it refuses those that conflict. An operation is such an access.
fn buffer_in_use_is_refused_to_another_stream_until_the_operation_has_run() {
    run_ranks(0, |rank| {
        let send = DeviceBuffer::from_host(&rank.other, &rank.values(LENGTH)).unwrap();
        let mut recv = DeviceBuffer::<f32>::zeroed(&rank.other, LENGTH).unwrap();
        rank.be_late();
        rank.comm.all_reduce(&send, &mut recv, ReduceOp::Sum, &rank.stream).unwrap();
        if rank.comm.rank() == 0 {
            let refused = recv.zero_async(&rank.other).unwrap_err();
            assert_eq!(refused.0, sys::cudaError_enum_CUDA_ERROR_NOT_READY, "{refused}");
            let refused = recv.to_host_vec(&rank.other).unwrap_err();
            assert_eq!(refused.0, sys::cudaError_enum_CUDA_ERROR_NOT_READY, "{refused}");
        }
        // Two reads do not conflict, and neither does the operation's own stream.
        assert_eq!(send.to_host_vec(&rank.other).unwrap(), rank.values(LENGTH));
        assert_eq!(recv.to_host_vec(&rank.stream).unwrap(), [3.0; LENGTH]);
        recv.zero_async(&rank.other).unwrap();
        assert_eq!(recv.to_host_vec(&rank.other).unwrap(), [0.0; LENGTH]);
    });
}

/// An access that cuda-core does not see end, such as one of a lease that is never given back.
fn buffer_leased_for_good_is_invalid_argument() {
    run_ranks(0, |rank| {
        let mut sums = zeros(&rank.stream, LENGTH);
        let send = upload(&rank.other, &rank.values(LENGTH));
        let lease = send.storage().acquire(&rank.other, true, false).unwrap();
        let result = rank.comm.all_reduce(&send, &mut sums, ReduceOp::Sum, &rank.stream);
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::InvalidArgument { kind: InvalidArgumentKind::NotReady, .. }),
            "{error}"
        );
        let expected =
            "all_reduce: a buffer is not ready: cuda-core still writes it on another stream after 5 s";
        assert_eq!(error.to_string(), expected);
        drop(lease);
        rank.comm.all_reduce(&send, &mut sums, ReduceOp::Sum, &rank.stream).unwrap();
        assert_eq!(read(&rank.stream, &sums), [3.0; LENGTH]);
    });
}

fn views_are_sent() {
    run_ranks(0, |rank| {
        let peer = 1 - rank.comm.rank();
        let send = upload(&rank.other, &(0..1000).map(|number| number as f32).collect::<Vec<_>>());
        let [mut first, mut second] = [100, 200].map(|length| zeros(&rank.stream, length));
        let view = send.slice(800..1000).unwrap();
        rank.be_late();
        rank.nccl
            .group(|g| {
                rank.comm.send(send.slice(0..100).unwrap(), peer, g.stream(&rank.stream))?;
                rank.comm.recv(&mut first, peer, g.stream(&rank.stream))?;
                rank.comm.send(&view, peer, g.stream(&rank.stream))?;
                rank.comm.recv(&mut second, peer, g.stream(&rank.stream))
            })
            .unwrap();
        drop(send);
        rank.overwrite_free_memory();
        let (first, second) = (read(&rank.stream, &first), read(&rank.stream, &second));
        assert_eq!((first[99], second[0], second[199]), (99.0, 800.0, 999.0));
    });
}

fn view_of_another_device_is_invalid_argument() {
    run_ranks(0, |rank| {
        let peer = 1 - rank.comm.rank();
        let foreign = zeros(&CudaContext::new(peer).unwrap().default_stream(), 8);
        for stream in [StreamRef::DEFAULT, (&rank.stream).into()] {
            let result = rank.comm.send(foreign.slice(1..8).unwrap(), peer, stream);
            assert_other_device(result, "send buffer", peer, rank.comm.rank());
        }
    });
}

/// Nothing runs before the graph is launched, and the graph can be launched at any time.
fn captured_operation_leaves_the_buffer_free() {
    run_ranks(0, |rank| {
        let mut buffer = DeviceBuffer::from_host(&rank.stream, &rank.values(LENGTH)).unwrap();
        // SAFETY: the context is current, and nothing else captures the stream.
        unsafe { rank.stream.begin_capture(sys::CUstreamCaptureMode_enum_CU_STREAM_CAPTURE_MODE_RELAXED) }
            .unwrap();
        rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &rank.stream).unwrap();
        // SAFETY: it was begun above.
        let graph = unsafe { rank.stream.end_capture() }.unwrap();
        assert_eq!(buffer.to_host_vec(&rank.other).unwrap(), rank.values(LENGTH));
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is live, and each is destroyed after its use; buffer and communicator outlive the launch.
        unsafe {
            assert_eq!(sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0), 0);
            assert_eq!(sys::cuGraphLaunch(executable, rank.stream.cu_stream()), 0);
            rank.stream.synchronize().unwrap();
            assert_eq!(sys::cuGraphExecDestroy(executable), 0);
            assert_eq!(sys::cuGraphDestroy(graph), 0);
        }
        assert_eq!(buffer.to_host_vec(&rank.stream).unwrap(), [3.0; LENGTH]);
    });
}

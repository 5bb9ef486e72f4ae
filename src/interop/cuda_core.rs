//! Buffers, streams and contexts of NVIDIA's crate cuda-core.
#![allow(unsafe_code)] // Unsafe traits; streams without ownership.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cuda_core::{
    AllocationLease, CudaContext, CudaStream, DeviceBuffer, DeviceBufferView, DriverError, RawDeviceBuffer,
    sys,
};

use super::device;
use crate::buffer::{Buffer, BufferMut, BufferResult, Slice, SliceMut};
use crate::cuda::{Context, is_stream_complete};
use crate::data_type::Element;
use crate::stream::{Stream, StreamRef};
use crate::sys::cudaStream_t;

/// The longest time that an operation waits for the end of other accesses to its memory.
const LEASE_LIMIT: Duration = Duration::from_secs(5);

/// The guard of a buffer of the crate cuda-core that is passed to an operation. Once the operation is enqueued, the guard keeps
/// cuda-core's lease of the memory until the operation has run.
///
/// Operations accept references to `DeviceBuffer` and `DeviceBufferView`. They also accept the views by value. The memory of
/// these buffers belongs to no stream. cuda-core counts the accesses in flight and frees the memory after the last one. While
/// another stream writes the memory, cuda-core refuses any access with `CUDA_ERROR_NOT_READY`. While another stream reads the
/// memory, it refuses writes. An operation counts as an access to the whole allocation.
///
/// If cuda-core would refuse the access, the operation first waits until the other accesses have ended, for at most 5 s. If they
/// have not ended by then, the operation does not start, and returns
/// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) of the kind
/// [`NotReady`](crate::error::InvalidArgumentKind::NotReady).
///
/// Right after the call, a buffer may be dropped, or used again on the same stream. Before using it on another stream, wait for
/// the first stream.
///
/// ```no_run
/// use cuda_core::{CudaContext, DeviceBuffer};
/// use libnccl::{Nccl, ReduceOp};
///
/// let nccl = Nccl::load()?;
/// let context = CudaContext::new(0)?;
/// let stream = context.new_stream()?;
/// let comm = nccl.communicator(1, 0, &nccl.unique_id()?).device(&context).init()?;
///
/// let gradients = DeviceBuffer::from_host(&stream, &[1.0_f32, 2.0])?;
/// let mut sums = DeviceBuffer::<f32>::zeroed(&stream, 2)?;
/// comm.all_reduce(&gradients, &mut sums, ReduceOp::Sum, &stream)?;
/// assert_eq!(sums.to_host_vec(&stream)?, [1.0, 2.0]);
/// comm.broadcast(gradients.slice(1..2)?, &mut sums, 0, &stream)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An operation that a CUDA graph captures has no lease: the buffers must outlive the graph, and the caller must order the
/// graph's launches and other accesses. If a buffer was dropped while a stream used it, a thread of cuda-core soon frees it on
/// that stream. Do not begin to capture the stream before the buffer is freed: the free would become part of the graph.
///
/// cuda-core 0.5 needs Rust 1.89. Building it needs libclang, and the headers of CUDA toolkit 13.0 or newer in
/// `CUDA_TOOLKIT_PATH`.
#[allow(unreachable_pub)] // Named as the associated type of buffers only.
pub struct CudaCoreGuard<'a> {
    kept: Option<Kept>,
    stream: StreamRef<'a>,
}

/// The lease of an operation's memory, with its context and stream.
struct Kept {
    lease: AllocationLease,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// The error that the context kept for a later call of cuda-core. Calls in this module would return it otherwise.
    error: Result<(), DriverError>,
}

impl<'a> CudaCoreGuard<'a> {
    fn new(memory: &RawDeviceBuffer, writes: bool, stream: StreamRef<'a>) -> BufferResult<Self> {
        let context = Arc::clone(memory.context());
        // On another device, the operation does not start.
        let is_other_device = stream.device().is_some_and(|found| Some(found) != device(&context));
        if memory.is_empty() || is_other_device {
            return Ok(Self { kept: None, stream });
        }
        let past = context.check_err();
        if is_capturing(&context, stream) {
            context.record_err(past);
            return Ok(Self { kept: None, stream });
        }
        // SAFETY: of the buffer's device, as the operation starts. It is live for `'a`, and the guard has dropped this by
        // then; cuda-core does not use the handle after that.
        let own = unsafe { CudaStream::borrow_raw(stream.as_raw().cast(), &context) };
        match lease(memory, &own, writes) {
            Ok(lease) => Ok(Self { kept: Some(Kept { lease, context, stream: own, error: past }), stream }),
            Err(error) => {
                context.record_err(past);
                Err(error)
            }
        }
    }
}

/// Returns a lease of the memory. Waits for other streams that use the memory, at most for [`LEASE_LIMIT`].
///
/// Waits only for this memory: a wait for the device would also wait for other communicators, whose ranks may wait for this rank.
fn lease(memory: &RawDeviceBuffer, stream: &CudaStream, writes: bool) -> BufferResult<AllocationLease> {
    const PAUSE: Duration = Duration::from_micros(100);
    let start = Instant::now();
    loop {
        match memory.acquire(stream, writes, false) {
            Ok(lease) => return Ok(lease),
            Err(DriverError(sys::cudaError_enum_CUDA_ERROR_NOT_READY)) if start.elapsed() < LEASE_LIMIT => {
                thread::sleep(PAUSE);
            }
            Err(DriverError(sys::cudaError_enum_CUDA_ERROR_NOT_READY)) => {
                let access = if writes { "uses" } else { "writes" };
                let limit = LEASE_LIMIT.as_secs();
                return Err(format!("cuda-core still {access} it on another stream after {limit} s").into());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether a CUDA graph captures the work enqueued on the stream, in which case nothing runs now.
fn is_capturing(context: &CudaContext, stream: StreamRef<'_>) -> bool {
    let mut status = sys::CUstreamCaptureStatus_enum_CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: a live stream of the context's device, and a valid out-parameter.
    let result = context
        .bind_to_thread()
        .map(|()| unsafe { sys::cuStreamIsCapturing(stream.as_raw().cast(), &raw mut status) });
    // An error of the context is found by the calls that follow.
    result == Ok(sys::cudaError_enum_CUDA_SUCCESS)
        && status != sys::CUstreamCaptureStatus_enum_CU_STREAM_CAPTURE_STATUS_NONE
}

impl Drop for CudaCoreGuard<'_> {
    fn drop(&mut self) {
        let Some(Kept { lease, context, stream, error }) = self.kept.take() else { return };
        let error = error.and(context.check_err());
        // If CUDA cannot record an event, the memory is kept forever.
        let retained = lease.retain_until_complete(&stream);
        drop(stream);
        context.record_err(error.and(retained));
    }
}

impl fmt::Debug for CudaCoreGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaCoreGuard").field("stream", &self.stream).finish_non_exhaustive()
    }
}

macro_rules! buffers {
    ($($buffer:ty),*) => {$(
        impl<'a, T: Element> Buffer<'a> for $buffer {
            type Element = T;
            type Guard = CudaCoreGuard<'a>;

            unsafe fn into_slice(
                self,
                stream: StreamRef<'a>,
            ) -> BufferResult<(Slice<'a, T>, CudaCoreGuard<'a>)> {
                let guard = CudaCoreGuard::new(self.storage(), false, stream)?;
                // SAFETY: device memory of `len` elements. cuda-core frees it after the last lease, and the guard keeps one until
                // the work has run. cuda-core forms no references to the elements.
                let slice = unsafe { Slice::from_device_ptr(self.cu_deviceptr() as *const T, self.len()) };
                Ok((slice.on_device(device(self.context())), guard))
            }
        }
    )*};
}

buffers!(&'a DeviceBuffer<T>, &'a DeviceBufferView<'_, T>, DeviceBufferView<'a, T>);

impl<'a, T: Element> BufferMut<'a> for &'a mut DeviceBuffer<T> {
    type Element = T;
    type Guard = CudaCoreGuard<'a>;

    unsafe fn into_slice_mut(
        self,
        stream: StreamRef<'a>,
    ) -> BufferResult<(SliceMut<'a, T>, CudaCoreGuard<'a>)> {
        let guard = CudaCoreGuard::new(self.storage(), true, stream)?;
        // SAFETY: as above; the buffer is borrowed exclusively.
        let slice = unsafe { SliceMut::from_device_ptr(self.cu_deviceptr() as *mut T, self.len()) };
        Ok((slice.on_device(device(self.context())), guard))
    }
}

// SAFETY: it owns the stream, or the caller that borrowed it guarantees that the stream outlives it; `device` returns
// the device.
unsafe impl Stream for CudaStream {
    fn as_raw(&self) -> cudaStream_t {
        self.cu_stream().cast()
    }
    fn device(&self) -> Option<i32> {
        device(self.context())
    }
    fn is_complete(&self) -> Result<bool, Box<dyn Error>> {
        self.context().bind_to_thread()?;
        // Not by `query`, whose error does not name the NCCL operation that failed on emulated devices.
        // SAFETY: a live stream, whose context is current.
        unsafe { is_stream_complete(self.as_raw()) }
    }
}

impl Context for CudaContext {
    fn device(&self) -> usize {
        self.ordinal()
    }
    fn make_current(&self) -> Result<(), Box<dyn Error>> {
        Ok(self.bind_to_thread()?)
    }
}

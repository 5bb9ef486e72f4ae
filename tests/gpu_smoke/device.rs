//! A GPU's memory and streams, through cudarc.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    CUdeviceptr, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode, cuStreamQuery,
};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, result};
use libnccl::{Element, NcclBuffer, Slice, SliceMut, StreamRef};

/// A GPU, and the stream that all work on it is ordered on.
pub(crate) struct Device {
    stream: Arc<CudaStream>,
}

/// Device memory. Never freed: the work on it may never end, and the process that has it is a short one.
pub(crate) struct Buffer {
    pointer: CUdeviceptr,
    bytes: usize,
    stream: Arc<CudaStream>,
}

/// The longest that running work may take. Two processes share a GPU in turns of milliseconds.
const WORK_LIMIT: Duration = Duration::from_secs(30);

impl Device {
    /// Creates a device with a new stream, for the calling thread.
    pub(crate) fn new() -> Self {
        Self { stream: context().new_stream().expect("a stream") }
    }

    /// Creates a device for each GPU that is visible, with a new stream.
    pub(crate) fn all() -> Vec<Self> {
        let count = CudaContext::device_count().expect("the number of GPUs");
        let contexts =
            (0..).take(count as usize).map(|number| CudaContext::new(number).expect("the GPU can be used"));
        contexts.map(|context| Self { stream: context.new_stream().expect("a stream") }).collect()
    }

    /// Creates a device with the default stream, for the calling thread.
    pub(crate) fn with_default_stream() -> Self {
        Self { stream: context().default_stream() }
    }

    /// Creates a device with the stream whose handle means another one on each thread.
    pub(crate) fn with_stream_per_thread() -> Self {
        Self { stream: context().per_thread_stream() }
    }

    /// Makes it the device of the calling thread.
    pub(crate) fn make_current(&self) {
        self.stream.context().bind_to_thread().expect("the GPU becomes current");
    }

    pub(crate) fn stream(&self) -> StreamRef<'_> {
        // SAFETY: a stream of the device that its user works on, which lives as long as `self`.
        unsafe { StreamRef::from_raw(self.stream.cu_stream().cast()) }
    }

    pub(crate) fn buffer(&self, bytes: usize) -> Buffer {
        self.make_current();
        // SAFETY: the context is current; CUDA refuses only an empty buffer.
        let pointer = unsafe { result::malloc_sync(bytes.max(1)) }.expect("device memory");
        Buffer { pointer, bytes, stream: Arc::clone(&self.stream) }
    }

    /// Creates a buffer that holds these elements.
    pub(crate) fn upload<T: Element>(&self, elements: &[T]) -> Buffer {
        let mut buffer = self.buffer(size_of_val(elements));
        buffer.write(elements);
        buffer
    }

    /// Writes to the start of NCCL's memory, after all work on the stream.
    pub(crate) fn fill<T: Element>(&self, buffer: &mut NcclBuffer<T>, elements: &[T]) {
        assert!(elements.len() <= buffer.len());
        // SAFETY: the buffer has that many elements, borrowed exclusively.
        unsafe { copy_in(&self.stream, buffer.as_mut_ptr() as CUdeviceptr, elements) };
    }

    /// Returns all elements of NCCL's memory, after all work on the stream.
    pub(crate) fn contents<T: Element + Default>(&self, buffer: &NcclBuffer<T>) -> Vec<T> {
        // SAFETY: the buffer has that many elements.
        unsafe { copy_out(&self.stream, buffer.as_ptr() as CUdeviceptr, buffer.len()) }
    }

    /// Captures the work that `start` starts on the stream, instead of running it.
    pub(crate) fn capture(&self, start: impl FnOnce()) -> CudaGraph {
        let (mode, flags) = (
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
            CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
        );
        self.stream.begin_capture(mode).expect("a stream that captures");
        start();
        self.stream.end_capture(flags).expect("the end of a capture").expect("a graph with work")
    }

    /// Returns whether all work on the stream ends within `time`.
    pub(crate) fn idle_within(&self, time: Duration) -> bool {
        idle_within(&self.stream, time)
    }
}

impl Buffer {
    pub(crate) fn write<T: Element>(&mut self, elements: &[T]) {
        self.check(size_of_val(elements));
        // SAFETY: it is long enough.
        unsafe { copy_in(&self.stream, self.pointer, elements) };
    }

    /// Returns the first elements, after all work on the stream.
    pub(crate) fn read<T: Element + Default>(&self, count: usize) -> Vec<T> {
        self.check(count * size_of::<T>());
        // SAFETY: it is long enough.
        unsafe { copy_out(&self.stream, self.pointer, count) }
    }

    /// Returns the first elements, for NCCL to read.
    pub(crate) fn slice<T: Element>(&self, count: usize) -> Slice<'_, T> {
        self.check(count * size_of::<T>());
        // SAFETY: the memory is that large and never freed; only NCCL and the copies above use it, and those wait
        // for the stream that all work is on.
        unsafe { Slice::from_device_ptr(self.pointer as *const T, count) }
    }

    /// Returns the first elements, for NCCL to write.
    pub(crate) fn slice_mut<T: Element>(&mut self, count: usize) -> SliceMut<'_, T> {
        self.check(count * size_of::<T>());
        // SAFETY: as above.
        unsafe { SliceMut::from_device_ptr(self.pointer as *mut T, count) }
    }

    fn check(&self, bytes: usize) {
        assert!(bytes <= self.bytes, "{bytes} bytes of a buffer of {}", self.bytes);
    }
}

/// # Safety
/// `to` is device memory for all the elements.
unsafe fn copy_in<T: Element>(stream: &CudaStream, to: CUdeviceptr, elements: &[T]) {
    wait(stream);
    // SAFETY: both are long enough, and live until the copy has been waited for.
    unsafe { result::memcpy_htod_async(to, elements, stream.cu_stream()) }.expect("a copy to the device");
    wait(stream);
}

/// # Safety
/// `from` is device memory that holds `count` elements.
unsafe fn copy_out<T: Element + Default>(stream: &CudaStream, from: CUdeviceptr, count: usize) -> Vec<T> {
    let mut elements = vec![T::default(); count];
    wait(stream);
    // SAFETY: as in `copy_in`.
    unsafe { result::memcpy_dtoh_async(&mut elements, from, stream.cu_stream()) }
        .expect("a copy from the device");
    wait(stream);
    elements
}

fn wait(stream: &CudaStream) {
    assert!(idle_within(stream, WORK_LIMIT), "the work on the GPU has not ended within {WORK_LIMIT:?}");
}

/// Returns the only device's context, made current on the calling thread.
fn context() -> Arc<CudaContext> {
    CudaContext::new(0).expect("GPU 0 can be used")
}

fn idle_within(stream: &CudaStream, time: Duration) -> bool {
    let start = Instant::now();
    loop {
        // SAFETY: a live stream.
        match unsafe { cuStreamQuery(stream.cu_stream()) } {
            CUresult::CUDA_SUCCESS => return true,
            CUresult::CUDA_ERROR_NOT_READY if start.elapsed() < time => std::thread::yield_now(),
            CUresult::CUDA_ERROR_NOT_READY => return false,
            error => panic!("the work on the GPU failed: {error:?}"),
        }
    }
}

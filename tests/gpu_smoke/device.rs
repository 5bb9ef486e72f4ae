//! A GPU's memory and streams, through cudarc.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUdeviceptr, CUresult, cuStreamQuery};
use cudarc::driver::{CudaContext, CudaStream, result};
use libnccl::{DeviceSlice, DeviceSliceMut, Element, StreamRef};

/// The GPU, and the stream that all work on it is ordered on.
pub(crate) struct Device {
    stream: Arc<CudaStream>,
}

/// Device memory. Never freed: the work on it may never end, and the process that has it is a short one.
pub(crate) struct Buffer {
    pointer: CUdeviceptr,
    bytes: usize,
    stream: Arc<CudaStream>,
}

/// So long may work take that is well under way. Two processes have a GPU in turns of milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

impl Device {
    /// With a stream of its own, for the thread that calls.
    pub(crate) fn new() -> Self {
        Self { stream: context().new_stream().expect("a stream") }
    }

    /// With the default stream.
    pub(crate) fn with_default_stream() -> Self {
        Self { stream: context().default_stream() }
    }

    pub(crate) fn stream(&self) -> StreamRef<'_> {
        // SAFETY: a stream of the only device that is used, which lives as long as `self`.
        unsafe { StreamRef::from_raw(self.stream.cu_stream().cast()) }
    }

    pub(crate) fn buffer(&self, bytes: usize) -> Buffer {
        // SAFETY: the context is current; CUDA refuses only an empty buffer.
        let pointer = unsafe { result::malloc_sync(bytes.max(1)) }.expect("device memory");
        Buffer { pointer, bytes, stream: Arc::clone(&self.stream) }
    }

    /// A buffer that holds these elements.
    pub(crate) fn upload<T: Element>(&self, elements: &[T]) -> Buffer {
        let mut buffer = self.buffer(size_of_val(elements));
        buffer.write(elements);
        buffer
    }

    /// Whether all work on the stream has run, or does so soon.
    pub(crate) fn idle_within(&self, time: Duration) -> bool {
        idle_within(&self.stream, time)
    }
}

impl Buffer {
    pub(crate) fn write<T: Element>(&mut self, elements: &[T]) {
        self.check(size_of_val(elements));
        self.wait();
        // SAFETY: both are long enough, and live until the copy has been waited for.
        unsafe { result::memcpy_htod_async(self.pointer, elements, self.stream.cu_stream()) }
            .expect("a copy to the device");
        self.wait();
    }

    /// The first elements, after all work on the stream.
    pub(crate) fn read<T: Element + Default>(&self, count: usize) -> Vec<T> {
        let mut elements = vec![T::default(); count];
        self.check(size_of_val(&*elements));
        self.wait();
        // SAFETY: as in `write`.
        unsafe { result::memcpy_dtoh_async(&mut elements, self.pointer, self.stream.cu_stream()) }
            .expect("a copy from the device");
        self.wait();
        elements
    }

    /// The first elements, for NCCL to read.
    pub(crate) fn slice<T: Element>(&self, count: usize) -> DeviceSlice<'_, T> {
        self.check(count * size_of::<T>());
        // SAFETY: so much memory is there, for ever; only NCCL and the copies above use it, and those wait for
        // the stream that all work is on.
        unsafe { DeviceSlice::from_raw_parts(self.pointer as *const T, count) }
    }

    /// The first elements, for NCCL to write.
    pub(crate) fn slice_mut<T: Element>(&mut self, count: usize) -> DeviceSliceMut<'_, T> {
        self.check(count * size_of::<T>());
        // SAFETY: as above.
        unsafe { DeviceSliceMut::from_raw_parts(self.pointer as *mut T, count) }
    }

    fn check(&self, bytes: usize) {
        assert!(bytes <= self.bytes, "{bytes} bytes of a buffer of {}", self.bytes);
    }

    fn wait(&self) {
        assert!(idle_within(&self.stream, PATIENCE), "the work on the GPU has not ended within {PATIENCE:?}");
    }
}

/// The only device's, made current on the thread that calls.
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

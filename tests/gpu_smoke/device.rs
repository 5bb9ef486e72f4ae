//! A GPU's memory and streams, through cudarc.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUdeviceptr, CUresult, cuStreamQuery};
use cudarc::driver::{CudaContext, CudaStream, result};
use libnccl::{DeviceSlice, DeviceSliceMut, Element, NcclBuffer, StreamRef};

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

    /// Writes memory of NCCL's, from its start on, after all work on the stream.
    pub(crate) fn fill<T: Element>(&self, buffer: &mut NcclBuffer<T>, elements: &[T]) {
        assert!(elements.len() <= buffer.len());
        // SAFETY: so many elements are there, borrowed exclusively.
        unsafe { copy_in(&self.stream, buffer.as_mut_ptr() as CUdeviceptr, elements) };
    }

    /// All of it, after all work on the stream.
    pub(crate) fn contents<T: Element + Default>(&self, buffer: &NcclBuffer<T>) -> Vec<T> {
        // SAFETY: so many elements are there.
        unsafe { copy_out(&self.stream, buffer.as_ptr() as CUdeviceptr, buffer.len()) }
    }

    /// Whether all work on the stream has run, or does so soon.
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

    /// The first elements, after all work on the stream.
    pub(crate) fn read<T: Element + Default>(&self, count: usize) -> Vec<T> {
        self.check(count * size_of::<T>());
        // SAFETY: it is long enough.
        unsafe { copy_out(&self.stream, self.pointer, count) }
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
    assert!(idle_within(stream, PATIENCE), "the work on the GPU has not ended within {PATIENCE:?}");
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

//! Buffers in host or device memory. No other module distinguishes the two.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::{
    CUdeviceptr, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode, cuStreamQuery,
};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, result};
use libnccl::{Communicator, DeviceSlice, DeviceSliceMut, Nccl, NcclBuffer, ResultCode, StreamRef};

use super::number::Number;
use super::pattern::{BLOCK, Comparison, Pattern};

/// The memory of a rank's buffers.
pub(crate) enum Memory {
    Host,
    /// Device memory, with the stream on which all work is ordered.
    ///
    /// Neither is ever freed: that would wait for work on the stream, which may never finish after an error of another
    /// rank. The program needs both until its end anyway.
    Device(&'static Arc<CudaStream>),
}

/// A buffer in a rank's memory.
pub(crate) enum Buffer<T: 'static> {
    Host(Vec<T>),
    Device {
        pointer: CUdeviceptr,
        length: usize,
        stream: &'static Arc<CudaStream>,
        /// The allocation, if NCCL has made it.
        allocation: Option<&'static mut NcclBuffer<T>>,
    },
}

/// Work that was captured from a stream.
pub(crate) struct Graph(CudaGraph);

impl Graph {
    /// Enqueues the work on the stream that it was captured from.
    pub(crate) fn launch(&self) -> Result<()> {
        Ok(self.0.launch()?)
    }
}

const OUT_OF_RANGE: &str = "the range exceeds the buffer";

impl Memory {
    /// Returns the memory of a rank; the ranks of a host are assigned to its GPUs round-robin. Must be called on the rank's
    /// own thread, whose current device it sets.
    pub(crate) fn of(local_rank: usize, gpus: usize, default_stream: bool) -> Result<Self> {
        if gpus == 0 {
            return Ok(Self::Host);
        }
        let device = local_rank % gpus;
        let stream = CudaContext::new(device).and_then(|context| {
            if default_stream { Ok(context.default_stream()) } else { context.new_stream() }
        });
        let stream = stream.with_context(|| format!("GPU {device} cannot be used"))?;
        Ok(Self::Device(Box::leak(Box::new(stream))))
    }

    /// Makes the device the current one of the calling thread.
    pub(crate) fn make_current(&self) -> Result<()> {
        match self {
            Self::Host => Ok(()),
            Self::Device(stream) => Ok(stream.context().bind_to_thread()?),
        }
    }

    /// Returns the stream for NCCL's operations.
    pub(crate) fn stream(&self) -> StreamRef<'static> {
        match self {
            Self::Host => StreamRef::DEFAULT,
            // SAFETY: the stream belongs to the rank's device and is never destroyed.
            Self::Device(stream) => unsafe { StreamRef::from_raw(stream.cu_stream().cast()) },
        }
    }

    /// Allocates a buffer of `length` elements; by NCCL if it is in device memory and NCCL can, as nccl-tests does.
    pub(crate) fn buffer<T: Number>(&self, nccl: &Nccl, length: usize) -> Result<Buffer<T>> {
        let too_large = || format!("cannot allocate {length} elements of {}", T::DATA_TYPE);
        match *self {
            Self::Host => {
                let mut elements = Vec::new();
                elements.try_reserve_exact(length).with_context(too_large)?;
                elements.resize(length, T::from_integer(0));
                Ok(Buffer::Host(elements))
            }
            Self::Device(stream) => {
                self.make_current()?;
                if length > 0 && nccl.require("ncclMemAlloc").is_ok() {
                    let allocation = Box::leak(Box::new(nccl.alloc::<T>(length).with_context(too_large)?));
                    let pointer = allocation.as_mut_ptr() as CUdeviceptr;
                    return Ok(Buffer::Device { pointer, length, stream, allocation: Some(allocation) });
                }
                let bytes = length.checked_mul(size_of::<T>()).with_context(too_large)?;
                // SAFETY: the thread's current context is the stream's, and the size is not 0. Not stream-ordered
                // memory, because NCCL lets other devices access it.
                let pointer = unsafe { result::malloc_sync(bytes.max(1)) }.with_context(too_large)?;
                Ok(Buffer::Device { pointer, length, stream, allocation: None })
            }
        }
    }

    /// Waits until all work has finished. Fails if the communicator reports an error.
    pub(crate) fn synchronize(&self, communicator: &Communicator) -> Result<()> {
        self.synchronize_within(communicator, Duration::MAX)
    }

    /// Waits until all work has finished. Fails if it takes longer than `limit`, or if the communicator reports an error.
    pub(crate) fn synchronize_within(&self, communicator: &Communicator, limit: Duration) -> Result<()> {
        let begin = Instant::now();
        let Self::Device(stream) = self else { return Ok(()) };
        self.make_current()?;
        loop {
            // SAFETY: the stream is never destroyed and belongs to the thread's current context.
            match unsafe { cuStreamQuery(stream.cu_stream()) } {
                CUresult::CUDA_SUCCESS => return Ok(()),
                CUresult::CUDA_ERROR_NOT_READY => {}
                error => error.result()?,
            }
            ensure!(begin.elapsed() < limit, "the work on the GPU is not done after {limit:?}");
            match communicator.async_error()? {
                ResultCode::SUCCESS | ResultCode::IN_PROGRESS => std::thread::yield_now(),
                code => bail!("the work on the GPU failed: {code}"),
            }
        }
    }

    /// Begins to capture the stream's work into a graph.
    pub(crate) fn begin_capture(&self) -> Result<()> {
        // NCCL may allocate memory in its first operations, which only this mode permits; other threads capture too.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        match self {
            Self::Host => bail!("host memory has no CUDA graphs"),
            Self::Device(stream) => Ok(stream.begin_capture(mode)?),
        }
    }

    /// Ends the capture, and returns the graph.
    pub(crate) fn end_capture(&self) -> Result<Graph> {
        let flags = CUgraphInstantiate_flags(0);
        match self {
            Self::Host => bail!("host memory has no CUDA graphs"),
            Self::Device(stream) => Ok(Graph(stream.end_capture(flags)?.context("nothing was captured")?)),
        }
    }

    /// Returns the free bytes of the GPU; 0 for host memory.
    pub(crate) fn free_bytes(&self) -> Result<i64> {
        match self {
            Self::Host => Ok(0),
            Self::Device(stream) => Ok(i64::try_from(stream.context().mem_get_info()?.0)?),
        }
    }

    /// Returns the address and the name of the device; `None` for host memory.
    pub(crate) fn device(&self) -> Result<Option<String>> {
        let Self::Device(stream) = self else { return Ok(None) };
        let context: &Arc<CudaContext> = stream.context();
        let domain = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let device = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Ok(Some(format!("[{domain:04x}:{bus:02x}:{device:02x}] {}", context.name()?)))
    }
}

impl<T: Number> Buffer<T> {
    /// Fills a range with a pattern. No work may be in flight on the buffer.
    pub(crate) fn fill(&mut self, part: Range<usize>, pattern: &Pattern<T>) -> Result<()> {
        let block = pattern.block(part.len());
        blocks(part).try_for_each(|part| self.write(part.start, &block[..part.len()]))
    }

    /// Compares the elements of a range with a pattern. No work may be in flight on the buffer.
    pub(crate) fn compare(&self, part: Range<usize>, pattern: &Pattern<T>) -> Result<Comparison> {
        let mut comparison = Comparison::default();
        for block in blocks(part.clone()) {
            let offset = block.start - part.start;
            comparison.add(pattern.compare(&self.read(block)?), offset);
        }
        Ok(comparison)
    }

    /// Copies `elements` into the buffer from `start` on. No work may be in flight on the buffer.
    pub(crate) fn write(&mut self, start: usize, elements: &[T]) -> Result<()> {
        let part = start..start + elements.len();
        match self {
            Self::Host(own) => own.get_mut(part).context(OUT_OF_RANGE)?.copy_from_slice(elements),
            Self::Device { pointer, length, stream, .. } => {
                ensure!(part.end <= *length, OUT_OF_RANGE);
                stream.context().bind_to_thread()?;
                // SAFETY: the range is within the buffer, and both live until the synchronization below.
                unsafe {
                    result::memcpy_htod_async(address::<T>(*pointer, start), elements, stream.cu_stream())
                }?;
                stream.synchronize()?;
            }
        }
        Ok(())
    }

    /// Returns the elements of a range. No work may be in flight on the buffer.
    pub(crate) fn read(&self, part: Range<usize>) -> Result<Cow<'_, [T]>> {
        match self {
            Self::Host(own) => Ok(Cow::Borrowed(own.get(part).context(OUT_OF_RANGE)?)),
            &Self::Device { pointer, length, stream, .. } => {
                ensure!(part.end <= length, OUT_OF_RANGE);
                stream.context().bind_to_thread()?;
                let mut elements = vec![T::from_integer(0); part.len()];
                let start = address::<T>(pointer, part.start);
                // SAFETY: as in `write`.
                unsafe { result::memcpy_dtoh_async(&mut elements, start, stream.cu_stream()) }?;
                stream.synchronize()?;
                Ok(Cow::Owned(elements))
            }
        }
    }

    /// Copies a range of `from` to `start`, in the order of the stream's work.
    pub(crate) fn enqueue_copy(&mut self, start: usize, from: &Self, part: Range<usize>) -> Result<()> {
        let end = start + part.len();
        match (self, from) {
            (Self::Host(to), Self::Host(from)) => {
                let from = from.get(part).context(OUT_OF_RANGE)?;
                to.get_mut(start..end).context(OUT_OF_RANGE)?.copy_from_slice(from);
            }
            (
                &mut Self::Device { pointer, length, stream, .. },
                &Self::Device { pointer: from, length: sent, .. },
            ) => {
                ensure!(end <= length && part.end <= sent, OUT_OF_RANGE);
                stream.context().bind_to_thread()?;
                let (to, from) = (address::<T>(pointer, start), address::<T>(from, part.start));
                // SAFETY: both ranges are within buffers, which are never freed, and all their work is on this stream.
                unsafe {
                    result::memcpy_dtod_async(to, from, part.len() * size_of::<T>(), stream.cu_stream())
                }?;
            }
            _ => bail!("a copy between host and device memory"),
        }
        Ok(())
    }

    /// Returns a range for NCCL to read, shorter if it exceeds the buffer.
    pub(crate) fn part(&self, part: Range<usize>) -> DeviceSlice<'_, T> {
        match self {
            Self::Host(own) => own.get(part).unwrap_or_default().into(),
            &Self::Device { pointer, length, .. } => {
                let end = part.end.min(length);
                let start = part.start.min(end);
                // SAFETY: the memory is never freed; apart from the copies above, only NCCL's operations access it, all
                // of them on one stream.
                unsafe { DeviceSlice::from_raw_parts(address::<T>(pointer, start) as *const T, end - start) }
            }
        }
    }

    /// Returns a range for NCCL to write, shorter if it exceeds the buffer.
    pub(crate) fn part_mut(&mut self, part: Range<usize>) -> DeviceSliceMut<'_, T> {
        match self {
            Self::Host(own) => own.get_mut(part).unwrap_or_default().into(),
            &mut Self::Device { pointer, length, .. } => {
                let end = part.end.min(length);
                let start = part.start.min(end);
                // SAFETY: as in `part`, and the borrow is exclusive.
                unsafe { DeviceSliceMut::from_raw_parts(address::<T>(pointer, start) as *mut T, end - start) }
            }
        }
    }

    /// Returns two ranges that do not overlap: one for NCCL to read, and one to write.
    pub(crate) fn parts(
        &mut self,
        read: Range<usize>,
        written: Range<usize>,
    ) -> Result<(DeviceSlice<'_, T>, DeviceSliceMut<'_, T>)> {
        match self {
            Self::Host(own) => {
                let [read, written] = own.get_disjoint_mut([read, written]).context(OUT_OF_RANGE)?;
                Ok(((&*read).into(), written.into()))
            }
            &mut Self::Device { pointer, length, .. } => {
                ensure!(read.end.max(written.end) <= length, OUT_OF_RANGE);
                ensure!(read.end <= written.start || written.end <= read.start, "the ranges overlap");
                let (from, to) = (address::<T>(pointer, read.start), address::<T>(pointer, written.start));
                // SAFETY: as in `part`, and the borrow is exclusive.
                unsafe {
                    let read = DeviceSlice::from_raw_parts(from as *const T, read.len());
                    Ok((read, DeviceSliceMut::from_raw_parts(to as *mut T, written.len())))
                }
            }
        }
    }

    /// Returns the allocation that NCCL has made, for registrations.
    pub(crate) fn allocation(&mut self) -> Result<&mut NcclBuffer<T>> {
        match self {
            Self::Device { allocation: Some(allocation), .. } => Ok(allocation),
            _ => bail!("registered buffers need memory that NCCL allocates: NCCL 2.19.3 or newer"),
        }
    }
}

/// Returns the device address of element `index`.
fn address<T>(pointer: CUdeviceptr, index: usize) -> CUdeviceptr {
    pointer + (index * size_of::<T>()) as CUdeviceptr
}

fn blocks(part: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    part.clone().step_by(BLOCK).map(move |start| start..part.end.min(start + BLOCK))
}

#[cfg(test)]
mod tests {
    use libnccl::ReduceOp;

    use super::{BLOCK, Buffer, Memory};
    use crate::bench::data::Data;
    use crate::bench::number::Number;
    use crate::bench::pattern::{Comparison, FirstWrong};

    fn buffer<T: Number>(length: usize) -> anyhow::Result<Buffer<T>> {
        Memory::Host.buffer(&libnccl_cpu::nccl(), length)
    }

    #[test]
    fn ranges_of_several_blocks_are_filled_and_compared() {
        let pattern = Data { op: ReduceOp::Sum, ranks: 2, seed: 3 }.sent::<u8>(1);
        let mut buffer = buffer(2 * BLOCK + 5).unwrap();
        buffer.fill(1..2 * BLOCK + 5, &pattern).unwrap();
        let compare = |buffer: &Buffer<u8>| buffer.compare(1..2 * BLOCK + 5, &pattern).unwrap();
        assert_eq!(compare(&buffer), Comparison::default());
        let expected = buffer.read(2 * BLOCK..2 * BLOCK + 1).unwrap()[0].to_string();
        buffer.write(2 * BLOCK, &[255; 5]).unwrap();
        let first = FirstWrong { offset: 2 * BLOCK - 1, got: "255".into(), expected };
        assert_eq!(compare(&buffer), Comparison { wrong: 5, first: Some(first) });
        assert_eq!(buffer.read(2 * BLOCK..2 * BLOCK + 5).unwrap(), [255; 5].as_slice());
        assert_eq!(buffer.compare(7..7, &pattern).unwrap(), Comparison::default());
    }

    #[test]
    fn ranges_beyond_the_end_are_errors() {
        let (mut buffer, other) = (buffer::<f32>(4).unwrap(), buffer::<f32>(8).unwrap());
        assert!(buffer.write(3, &[1.0, 2.0]).is_err());
        assert!(buffer.read(3..5).is_err());
        assert!(
            buffer.enqueue_copy(3, &other, 0..2).is_err() && buffer.enqueue_copy(0, &other, 7..9).is_err()
        );
        assert_eq!((buffer.part(3..5).len(), buffer.part_mut(1..3).len()), (0, 2));
        assert!(Memory::Host.buffer::<f64>(&libnccl_cpu::nccl(), usize::MAX).is_err());
    }
}

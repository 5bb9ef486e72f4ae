//! Buffers in host or device memory. No other module distinguishes the two.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::{CUdeviceptr, CUresult, cuStreamQuery};
use cudarc::driver::{CudaContext, CudaStream, result};
use libnccl::{Communicator, DeviceSlice, DeviceSliceMut, ResultCode, StreamRef};

use super::number::Number;
use super::pattern::{BLOCK, Pattern};

/// The memory of a rank's buffers.
pub(crate) enum Memory {
    Host,
    /// Device memory, with the stream on which all work is ordered.
    ///
    /// Neither is ever freed: that would wait for work on the stream, which may never finish after an error of another
    /// rank. The program needs both until its end anyway.
    Device(&'static CudaStream),
}

/// A buffer in a rank's memory.
pub(crate) enum Buffer<T> {
    Host(Vec<T>),
    Device { pointer: CUdeviceptr, length: usize, stream: &'static CudaStream },
}

const OUT_OF_RANGE: &str = "the range exceeds the buffer";

impl Memory {
    /// Returns the memory of a rank; the ranks of a host are assigned to its GPUs round-robin. Must be called on the rank's
    /// own thread, whose current device it sets.
    pub(crate) fn of(local_rank: usize, gpus: usize) -> Result<Self> {
        if gpus == 0 {
            return Ok(Self::Host);
        }
        let device = local_rank % gpus;
        let stream = CudaContext::new(device).and_then(|context| context.new_stream());
        let stream = stream.with_context(|| format!("GPU {device} cannot be used"))?;
        Ok(Self::Device(Box::leak(Box::new(stream))))
    }

    /// Returns the stream for NCCL's operations.
    pub(crate) fn stream(&self) -> StreamRef<'static> {
        match self {
            Self::Host => StreamRef::DEFAULT,
            // SAFETY: the stream belongs to the rank's device and is never destroyed.
            Self::Device(stream) => unsafe { StreamRef::from_raw(stream.cu_stream().cast()) },
        }
    }

    /// Allocates a buffer of `length` elements.
    pub(crate) fn buffer<T: Number>(&self, length: usize) -> Result<Buffer<T>> {
        let too_large = || format!("cannot allocate {length} elements of {}", T::DATA_TYPE);
        match *self {
            Self::Host => {
                let mut elements = Vec::new();
                elements.try_reserve_exact(length).with_context(too_large)?;
                elements.resize(length, T::from_integer(0));
                Ok(Buffer::Host(elements))
            }
            Self::Device(stream) => {
                let bytes = length.checked_mul(size_of::<T>()).with_context(too_large)?;
                // SAFETY: the thread's current context is the stream's, and the size is not 0. Not stream-ordered
                // memory, because NCCL lets other devices access it.
                let pointer = unsafe { result::malloc_sync(bytes.max(1)) }.with_context(too_large)?;
                Ok(Buffer::Device { pointer, length, stream })
            }
        }
    }

    /// Waits until all work has finished. Fails if the communicator reports an error.
    pub(crate) fn synchronize(&self, communicator: &Communicator) -> Result<()> {
        let Self::Device(stream) = self else { return Ok(()) };
        loop {
            // SAFETY: the stream is never destroyed and belongs to the thread's current context.
            match unsafe { cuStreamQuery(stream.cu_stream()) } {
                CUresult::CUDA_SUCCESS => return Ok(()),
                CUresult::CUDA_ERROR_NOT_READY => {}
                error => error.result()?,
            }
            match communicator.async_error()? {
                ResultCode::SUCCESS | ResultCode::IN_PROGRESS => std::thread::yield_now(),
                code => bail!("the work on the GPU failed: {code}"),
            }
        }
    }

    /// Returns the description of the device in nccl-tests' format.
    pub(crate) fn describe(&self) -> Result<String> {
        let Self::Device(stream) = self else { return Ok("[host memory]".into()) };
        let context: &Arc<CudaContext> = stream.context();
        let domain = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let device = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Ok(format!("[{domain:04x}:{bus:02x}:{device:02x}] {}", context.name()?))
    }
}

impl<T: Number> Buffer<T> {
    /// Fills a range with a pattern. No work may be in flight on the buffer.
    pub(crate) fn fill(&mut self, part: Range<usize>, pattern: &Pattern<T>) -> Result<()> {
        let block = pattern.block(part.len());
        blocks(part).try_for_each(|part| self.write(part.start, &block[..part.len()]))
    }

    /// Returns the number of elements of a range that differ from a pattern. No work may be in flight on the buffer.
    pub(crate) fn wrong(&self, part: Range<usize>, pattern: &Pattern<T>) -> Result<usize> {
        blocks(part).map(|part| Ok(pattern.wrong(&self.read(part)?))).sum()
    }

    /// Copies `elements` into the buffer from `start` on. No work may be in flight on the buffer.
    pub(crate) fn write(&mut self, start: usize, elements: &[T]) -> Result<()> {
        let part = start..start + elements.len();
        match self {
            Self::Host(own) => own.get_mut(part).context(OUT_OF_RANGE)?.copy_from_slice(elements),
            Self::Device { pointer, length, stream, .. } => {
                ensure!(part.end <= *length, OUT_OF_RANGE);
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
            &Self::Device { pointer, length, stream } => {
                ensure!(part.end <= length, OUT_OF_RANGE);
                let mut elements = vec![T::from_integer(0); part.len()];
                let start = address::<T>(pointer, part.start);
                // SAFETY: as in `write`.
                unsafe { result::memcpy_dtoh_async(&mut elements, start, stream.cu_stream()) }?;
                stream.synchronize()?;
                Ok(Cow::Owned(elements))
            }
        }
    }

    /// Returns the first `count` elements for NCCL to read.
    pub(crate) fn first(&self, count: usize) -> DeviceSlice<'_, T> {
        match self {
            Self::Host(own) => own[..count.min(own.len())].into(),
            // SAFETY: the memory is never freed; apart from the copies above, only NCCL's operations access it, all
            // of them on one stream.
            Self::Device { pointer, length, .. } => unsafe {
                DeviceSlice::from_raw_parts(*pointer as *const T, count.min(*length))
            },
        }
    }

    /// Returns the first `count` elements for NCCL to write.
    pub(crate) fn first_mut(&mut self, count: usize) -> DeviceSliceMut<'_, T> {
        match self {
            Self::Host(own) => {
                let count = count.min(own.len());
                (&mut own[..count]).into()
            }
            // SAFETY: as in `first`, and the borrow is exclusive.
            Self::Device { pointer, length, .. } => unsafe {
                DeviceSliceMut::from_raw_parts(*pointer as *mut T, count.min(*length))
            },
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

    use super::{BLOCK, Memory};
    use crate::bench::data::Data;

    #[test]
    fn ranges_of_several_blocks_are_filled_and_compared() {
        let pattern = Data { op: ReduceOp::Sum, ranks: 2, seed: 3 }.sent::<u8>(1);
        let mut buffer = Memory::Host.buffer(2 * BLOCK + 5).unwrap();
        buffer.fill(1..2 * BLOCK + 5, &pattern).unwrap();
        assert_eq!(buffer.wrong(1..2 * BLOCK + 5, &pattern).unwrap(), 0);
        buffer.write(2 * BLOCK, &[255; 5]).unwrap();
        assert_eq!(buffer.wrong(1..2 * BLOCK + 5, &pattern).unwrap(), 5);
        assert_eq!(buffer.read(2 * BLOCK..2 * BLOCK + 5).unwrap(), [255; 5].as_slice());
        assert_eq!(buffer.wrong(7..7, &pattern).unwrap(), 0);
    }

    #[test]
    fn ranges_beyond_the_end_are_errors() {
        let mut buffer = Memory::Host.buffer::<f32>(4).unwrap();
        assert!(buffer.write(3, &[1.0, 2.0]).is_err());
        assert!(buffer.read(3..5).is_err());
        assert_eq!((buffer.first(9).len(), buffer.first_mut(3).len()), (4, 3));
        assert!(Memory::Host.buffer::<f64>(usize::MAX).is_err());
    }
}

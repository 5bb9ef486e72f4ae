//! Buffers in host or device memory, the data that a rank sends and must receive, and registrations with NCCL.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use bytemuck::{cast_slice, cast_slice_mut};
use cudarc::driver::sys::{
    CUdevice_attribute as Attribute, CUdeviceptr, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode,
    cuStreamQuery,
};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, result};
use libnccl::buffer::AnyElement;
use libnccl::error::ResultCode;
use libnccl::observer::Extent;
use libnccl::window::{Registration, Window, WindowFlags};
use libnccl::{Communicator, DataType, Nccl, NcclBuffer, Slice, SliceMut, StreamRef};

use super::ranks::{Rank, Ranks};
use crate::bench::arguments::Register;
use crate::bench::benchmark::Benchmark;
use crate::bench::data::{BLOCK, Comparison, Data, Pattern};
use crate::bench::parameters::{Case, Parameters};

pub(crate) enum Memory {
    Host,
    /// Device memory, with the stream on which all work is ordered.
    ///
    /// Neither the memory nor the stream is ever freed. Freeing would wait for the stream's work, which may never finish after an
    /// error on another rank.
    Device(&'static Arc<CudaStream>),
}

/// A buffer in a rank's memory, of elements whose type is known only at run time.
pub(crate) struct Buffer {
    data_type: DataType,
    length: usize,
    storage: Storage,
}

enum Storage {
    /// 64-bit words, so that elements of every type are aligned.
    Host(Vec<u64>),
    Device {
        pointer: CUdeviceptr,
        stream: &'static Arc<CudaStream>,
        /// The allocation, if NCCL allocated it.
        allocation: Option<&'static mut NcclBuffer<u8>>,
    },
}

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

    pub(crate) fn make_current(&self) -> Result<()> {
        let Self::Device(stream) = self else { return Ok(()) };
        Ok(stream.context().bind_to_thread()?)
    }

    pub(crate) fn stream(&self) -> StreamRef<'static> {
        match self {
            Self::Host => StreamRef::DEFAULT,
            // SAFETY: the stream belongs to the rank's device and is never destroyed.
            Self::Device(stream) => unsafe { StreamRef::from_raw(stream.cu_stream().cast()) },
        }
    }

    /// Allocates a buffer of `length` elements. As in nccl-tests, device memory is allocated by `ncclMemAlloc` if available.
    pub(crate) fn buffer(&self, nccl: &Nccl, data_type: DataType, length: usize) -> Result<Buffer> {
        let too_large = || format!("cannot allocate {length} elements of {data_type}");
        let bytes = length.checked_mul(data_type.size()).with_context(too_large)?;
        let storage = match *self {
            Self::Host => {
                let (mut words, length) = (Vec::new(), bytes.div_ceil(size_of::<u64>()));
                words.try_reserve_exact(length).with_context(too_large)?;
                words.resize(length, 0);
                Storage::Host(words)
            }
            Self::Device(stream) => {
                self.make_current()?;
                if length > 0 && nccl.require("ncclMemAlloc").is_ok() {
                    let allocation = Box::leak(Box::new(nccl.alloc(bytes).with_context(too_large)?));
                    let pointer = allocation.as_mut_ptr() as CUdeviceptr;
                    Storage::Device { pointer, stream, allocation: Some(allocation) }
                } else {
                    // SAFETY: the thread's current context is the stream's, and the size is not 0. Not stream-ordered
                    // memory, because NCCL lets other devices access it.
                    let pointer = unsafe { result::malloc_sync(bytes.max(1)) }.with_context(too_large)?;
                    Storage::Device { pointer, stream, allocation: None }
                }
            }
        };
        Ok(Buffer { data_type, length, storage })
    }

    /// Waits until all work on the stream has finished. Fails if the communicator reports an error.
    pub(crate) fn synchronize(&self, communicator: &Communicator) -> Result<()> {
        let Self::Device(stream) = self else { return Ok(()) };
        self.make_current()?;
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

    pub(crate) fn begin_capture(&self) -> Result<()> {
        // NCCL may allocate memory in its first operations, which only this mode permits; other threads capture too.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let Self::Device(stream) = self else { bail!("host memory has no CUDA graphs") };
        Ok(stream.begin_capture(mode)?)
    }

    pub(crate) fn end_capture(&self) -> Result<CudaGraph> {
        let flags = CUgraphInstantiate_flags(0);
        let Self::Device(stream) = self else { bail!("host memory has no CUDA graphs") };
        stream.end_capture(flags)?.context("nothing was captured")
    }

    /// Returns the free bytes of the GPU; 0 for host memory.
    pub(crate) fn free_bytes(&self) -> Result<i64> {
        let Self::Device(stream) = self else { return Ok(0) };
        Ok(i64::try_from(stream.context().mem_get_info()?.0)?)
    }

    /// Returns the PCI address and the name of the device; `None` for host memory.
    pub(crate) fn device(&self) -> Result<Option<String>> {
        let Self::Device(stream) = self else { return Ok(None) };
        let context: &Arc<CudaContext> = stream.context();
        let domain = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let device = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Ok(Some(format!("[{domain:04x}:{bus:02x}:{device:02x}] {}", context.name()?)))
    }
}

/// Ranges and indices are in elements. No work may be in flight on a buffer that is filled, compared, written or read.
impl Buffer {
    pub(crate) fn fill(&mut self, part: Range<usize>, pattern: &Pattern) -> Result<()> {
        let (block, size) = (pattern.block(part.len()), self.data_type.size());
        blocks(part).try_for_each(|part| self.write(part.start, &block[..part.len() * size]))
    }

    pub(crate) fn compare(&self, part: Range<usize>, pattern: &Pattern) -> Result<Comparison> {
        let mut comparison = Comparison::default();
        for block in blocks(part.clone()) {
            comparison.add(pattern.compare(&self.read(block.clone())?), block.start - part.start);
        }
        Ok(comparison)
    }

    pub(crate) fn write(&mut self, start: usize, elements: &[u8]) -> Result<()> {
        let part = self.bytes(start..start + elements.len() / self.data_type.size())?;
        match &mut self.storage {
            Storage::Host(words) => cast_slice_mut::<_, u8>(words)[part].copy_from_slice(elements),
            Storage::Device { pointer, stream, .. } => {
                stream.context().bind_to_thread()?;
                // SAFETY: the range is within the buffer, and both live until the synchronization below.
                unsafe {
                    result::memcpy_htod_async(address(*pointer, part.start), elements, stream.cu_stream())
                }?;
                stream.synchronize()?;
            }
        }
        Ok(())
    }

    pub(crate) fn read(&self, part: Range<usize>) -> Result<Cow<'_, [u8]>> {
        let part = self.bytes(part)?;
        match &self.storage {
            Storage::Host(words) => Ok(Cow::Borrowed(&cast_slice::<_, u8>(words)[part])),
            &Storage::Device { pointer, stream, .. } => {
                stream.context().bind_to_thread()?;
                let mut elements = vec![0; part.len()];
                let start = address(pointer, part.start);
                // SAFETY: as in `write`.
                unsafe { result::memcpy_dtoh_async(&mut elements, start, stream.cu_stream()) }?;
                stream.synchronize()?;
                Ok(Cow::Owned(elements))
            }
        }
    }

    /// Copies the range `part` of `from` to the index `start` of this buffer, in stream order.
    pub(crate) fn enqueue_copy(&mut self, start: usize, from: &Self, part: Range<usize>) -> Result<()> {
        let to = self.bytes(start..start + part.len())?;
        let part = from.bytes(part)?;
        ensure!(to.len() == part.len(), "a copy between buffers of different types");
        match (&mut self.storage, &from.storage) {
            (Storage::Host(own), Storage::Host(from)) => {
                cast_slice_mut::<_, u8>(own)[to].copy_from_slice(&cast_slice(from)[part]);
            }
            (&mut Storage::Device { pointer, stream, .. }, &Storage::Device { pointer: from, .. }) => {
                stream.context().bind_to_thread()?;
                let (to, from) = (address(pointer, to.start), address(from, part.start));
                // SAFETY: both ranges are within buffers, which are never freed, and all their work is on this stream.
                unsafe { result::memcpy_dtod_async(to, from, part.len(), stream.cu_stream()) }?;
            }
            _ => bail!("a copy between host and device memory"),
        }
        Ok(())
    }

    pub(crate) fn part(&self, part: Range<usize>) -> Result<Slice<'_, AnyElement>> {
        let part = self.bytes(part)?;
        Ok(match &self.storage {
            Storage::Host(words) => Slice::from_bytes(self.data_type, &cast_slice::<_, u8>(words)[part])?,
            // SAFETY: the memory is never freed; apart from the copies above, only NCCL's operations on one stream access it.
            Storage::Device { pointer, .. } => unsafe {
                let start = address(*pointer, part.start) as *const u8;
                Slice::from_bytes(self.data_type, Slice::<u8>::from_device_ptr(start, part.len()))?
            },
        })
    }

    pub(crate) fn part_mut(&mut self, part: Range<usize>) -> Result<SliceMut<'_, AnyElement>> {
        let part = self.bytes(part)?;
        Ok(match &mut self.storage {
            Storage::Host(words) => {
                SliceMut::from_bytes(self.data_type, &mut cast_slice_mut::<_, u8>(words)[part])?
            }
            // SAFETY: as in `part`, and the borrow is exclusive.
            Storage::Device { pointer, .. } => unsafe {
                let start = address(*pointer, part.start) as *mut u8;
                SliceMut::from_bytes(self.data_type, SliceMut::<u8>::from_device_ptr(start, part.len()))?
            },
        })
    }

    /// Returns views of two ranges: one for NCCL to read, and one for NCCL to write. Fails if they overlap.
    pub(crate) fn parts(
        &mut self,
        read: Range<usize>,
        written: Range<usize>,
    ) -> Result<(Slice<'_, AnyElement>, SliceMut<'_, AnyElement>)> {
        let (read, written) = (self.bytes(read)?, self.bytes(written)?);
        let (read, written): (Slice<'_, u8>, SliceMut<'_, u8>) = match &mut self.storage {
            Storage::Host(words) => {
                let parts = cast_slice_mut::<_, u8>(words).get_disjoint_mut([read, written]);
                let [read, written] = parts.context("the ranges overlap")?;
                ((&*read).into(), written.into())
            }
            &mut Storage::Device { pointer, .. } => {
                ensure!(read.end <= written.start || written.end <= read.start, "the ranges overlap");
                let (from, to) = (address(pointer, read.start), address(pointer, written.start));
                // SAFETY: as in `part`, and the borrow is exclusive.
                unsafe {
                    let read = Slice::from_device_ptr(from as *const u8, read.len());
                    (read, SliceMut::from_device_ptr(to as *mut u8, written.len()))
                }
            }
        };
        Ok((Slice::from_bytes(self.data_type, read)?, SliceMut::from_bytes(self.data_type, written)?))
    }

    pub(crate) fn allocation(&mut self) -> Result<&mut NcclBuffer<u8>> {
        match &mut self.storage {
            Storage::Device { allocation: Some(allocation), .. } => Ok(allocation),
            _ => bail!("registered buffers need memory that NCCL allocates: NCCL 2.19.3 or newer"),
        }
    }

    fn bytes(&self, part: Range<usize>) -> Result<Range<usize>> {
        ensure!(part.start <= part.end && part.end <= self.length, "the range exceeds the buffer");
        let size = self.data_type.size();
        Ok(part.start * size..part.end * size)
    }
}

fn address(pointer: CUdeviceptr, byte: usize) -> CUdeviceptr {
    pointer + byte as CUdeviceptr
}

fn blocks(part: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    part.clone().step_by(BLOCK).map(move |start| start..part.end.min(start + BLOCK))
}

/// The buffers of a rank. Ranges are relative to the first used element (`--unalign`).
pub(crate) struct Buffers {
    pub(crate) send: Buffer,
    pub(crate) recv: Buffer,
    rank: usize,
}

impl Buffers {
    pub(crate) fn new(nccl: &Nccl, member: &Rank, data_type: DataType, length: usize) -> Result<Self> {
        let [send, recv] = [(); 2].map(|()| member.memory.buffer(nccl, data_type, length));
        Ok(Self { send: send?, recv: recv?, rank: member.communicator.rank() })
    }

    /// Writes the data to send, and a different pattern where data will be received.
    pub(crate) fn fill(&mut self, case: Case<'_>, data: &Data) -> Result<()> {
        let Case { parameters, shape, in_place } = case;
        let start = parameters.unalign;
        let sent = data.sent(self.rank);
        self.recv.fill(start..start + shape.total(), &data.untouched())?;
        if in_place {
            let part = shape.sent_in_place(self.rank);
            self.recv.fill(start + part.start..start + part.end, &sent)
        } else {
            self.send.fill(start..start + shape.send, &sent)
        }
    }

    pub(crate) fn compare(&self, case: Case<'_>, data: &Data) -> Result<Comparison> {
        let Case { parameters, shape, in_place } = case;
        let start = parameters.unalign + if in_place { shape.received_in_place(self.rank).start } else { 0 };
        let mut all = Comparison::default();
        for (part, pattern) in self.expected(case, data) {
            all.add(self.recv.compare(start + part.start..start + part.end, &pattern)?, part.start);
        }
        Ok(all)
    }

    fn expected(&self, case: Case<'_>, data: &Data) -> Vec<(Range<usize>, Pattern)> {
        let Case { parameters, shape, in_place } = case;
        let &Parameters { benchmark, root, ranks, .. } = parameters;
        let (operation, rank, count) = (benchmark.operation(), self.rank, shape.count);
        let all = |pattern| vec![(0..shape.recv, pattern)];
        // The position of this rank's part in another rank's data.
        let start = if operation.sends == Extent::CountPerRank { rank * count } else { 0 };
        match benchmark {
            Benchmark::SendRecv => all(data.sent((rank + ranks - 1) % ranks)),
            Benchmark::AllToAllV => {
                let mut end = 0;
                let part = |from| {
                    let (start, sent) = (end, (0..rank).map(|to| shape.part(from, to)).sum());
                    end += shape.part(from, rank);
                    (start..end, data.sent(from).from(sent))
                };
                (0..ranks).map(part).collect()
            }
            // The receive buffer stays unchanged.
            _ if !operation.is_receiver(rank == root) => {
                let sent = if in_place { shape.sent_in_place(rank) } else { 0..0 };
                let (before, after) = (0..sent.start, sent.end..shape.recv);
                vec![(before, data.untouched()), (sent, data.sent(rank)), (after, data.untouched())]
            }
            _ if operation.reduces => all(data.reduced().from(start)),
            _ if operation.receives == Extent::Count => all(data.sent(root).from(start)),
            _ => {
                let part = |from| (from * count..(from + 1) * count, data.sent(from).from(start));
                (0..ranks).map(part).collect()
            }
        }
    }
}

pub(crate) struct Registrations {
    local: Vec<Registration>,
    windows: Vec<Window<u8>>,
}

impl Registrations {
    /// Registers the buffers of each rank, if requested. For windows, all ranks must call this.
    pub(crate) fn new(ranks: &Ranks, buffers: &mut [Buffers], register: Register) -> Result<Self> {
        let (mut local, mut windows) = (vec![], vec![]);
        let buffers = ranks.members.iter().zip(buffers).flat_map(|(member, buffers)| {
            [&mut buffers.send, &mut buffers.recv].map(|buffer| (member, buffer))
        });
        match register {
            Register::None => {}
            Register::Local => {
                for (member, buffer) in buffers {
                    local.push(member.communicator.register(buffer.allocation()?)?);
                }
            }
            Register::Symmetric => ranks.nccl.try_group(|group| {
                for (Rank { communicator, memory, .. }, buffer) in buffers {
                    memory.make_current()?;
                    let (buffer, flags) = (buffer.allocation()?, WindowFlags::COLL_SYMMETRIC);
                    // SAFETY: the size follows from the parameters, which are the same on all ranks.
                    windows.push(unsafe { group.register_window(communicator, buffer, flags) }?);
                }
                anyhow::Ok(())
            })?,
        }
        Ok(Self { local, windows })
    }

    /// Deregisters the buffers. All ranks must call this.
    pub(crate) fn end(self, ranks: &mut Ranks, buffers: &mut [Buffers]) -> Result<()> {
        if self.local.is_empty() && self.windows.is_empty() {
            return Ok(());
        }
        ranks.barrier()?;
        for buffer in buffers.iter_mut().flat_map(|buffers| [&mut buffers.send, &mut buffers.recv]) {
            // SAFETY: all ranks have waited for their streams and then for each other.
            unsafe { buffer.allocation()?.assume_idle() };
        }
        self.local.into_iter().try_for_each(Registration::deregister)?;
        self.windows.into_iter().try_for_each(Window::deregister)?;
        // Other ranks may use their part until here, and the communicators are destroyed next.
        ranks.barrier()
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/memory.rs"]
mod tests;

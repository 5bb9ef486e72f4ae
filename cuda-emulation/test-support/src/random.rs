//! Random programs of streams, events and copies, generated as they run, and a model of their data: the same operations one
//! after another.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::result::{self, event, stream, stream::StreamKind};
use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUstream};
use cudarc::driver::{CudaContext, DriverError};
use fastrand::Rng;

/// The bytes of a buffer.
pub const LENGTH: usize = 96;

pub type Result<T = ()> = std::result::Result<T, DriverError>;

/// A use of a buffer: the stream, and the event recorded after the use.
type Use = (usize, CUevent);

/// A stream, and the device that is current when it is used.
#[derive(Debug)]
pub struct Queue {
    pub device: usize,
    pub handle: CUstream,
}

/// A buffer, its data according to the model, and the uses for which later uses have to wait.
#[derive(Debug)]
pub struct Buffer {
    pub address: CUdeviceptr,
    pub data: Vec<u8>,
    is_pinned: bool,
    written: Option<Use>,
    read: Vec<Use>,
}

#[derive(Debug)]
pub struct Program<'a> {
    pub rng: Rng,
    contexts: &'a [Arc<CudaContext>],
    pub queues: Vec<Queue>,
    pub buffers: Vec<Buffer>,
    events: Vec<CUevent>,
}

// SAFETY, for all methods below: streams, events and buffers live until `end`, and ranges are inside their buffers.

impl<'a> Program<'a> {
    pub fn new(number: u64, contexts: &'a [Arc<CudaContext>]) -> Self {
        Self { rng: Rng::with_seed(number), contexts, queues: vec![], buffers: vec![], events: vec![] }
    }

    /// Opens streams of each device, its default stream among them, and buffers.
    pub fn begin(&mut self, buffers: Range<usize>, may_be_pinned: bool) -> Result {
        for device in 0..self.contexts.len() {
            self.contexts[device].bind_to_thread()?;
            self.queues.push(Queue { device, handle: ptr::null_mut() });
            for _ in 0..self.rng.usize(1..4) {
                let kind = if self.rng.bool() { StreamKind::Default } else { StreamKind::NonBlocking };
                self.queues.push(Queue { device, handle: stream::create(kind)? });
            }
            for _ in 0..self.rng.usize(buffers.clone()) {
                let is_pinned = may_be_pinned && self.rng.u8(..4) == 0;
                let mut data = vec![0; LENGTH];
                self.rng.fill(&mut data);
                // SAFETY: `end` frees it.
                let address = unsafe {
                    if is_pinned {
                        result::malloc_host(LENGTH, 0)? as CUdeviceptr
                    } else {
                        result::malloc_sync(LENGTH)?
                    }
                };
                // SAFETY: the buffer is as long as its data.
                unsafe { sys::cuMemcpy(address, data.as_ptr() as CUdeviceptr, LENGTH) }.result()?;
                self.buffers.push(Buffer { address, data, is_pinned, written: None, read: vec![] });
            }
        }
        Ok(())
    }

    fn bind(&self, queue: usize) -> Result {
        self.contexts[self.queues[queue].device].bind_to_thread()
    }

    /// Makes a stream wait for an earlier use of a buffer, by a randomly chosen method.
    fn order(&mut self, queue: usize, (earlier, event): Use) -> Result {
        if earlier == queue {
            return Ok(());
        }
        // SAFETY: see above.
        unsafe {
            match self.rng.u8(..8) {
                0 => event::synchronize(event),
                1 => {
                    self.bind(earlier)?;
                    stream::synchronize(self.queues[earlier].handle)?;
                    self.bind(queue)
                }
                2 => {
                    while let Err(DriverError(error)) = event::query(event) {
                        assert_eq!(error, sys::CUresult::CUDA_ERROR_NOT_READY);
                    }
                    Ok(())
                }
                _ => {
                    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                    stream::wait_event(self.queues[queue].handle, event, flags)
                }
            }
        }
    }

    /// Makes a stream wait for the earlier uses of a buffer on which its use depends. The stream's device becomes current.
    pub fn before(&mut self, queue: usize, buffer: usize, writes: bool) -> Result {
        self.bind(queue)?;
        let mut earlier = Vec::from_iter(self.buffers[buffer].written);
        if writes {
            earlier.extend_from_slice(&self.buffers[buffer].read);
        }
        earlier.into_iter().try_for_each(|earlier| self.order(queue, earlier))
    }

    /// Records that the operation enqueued last uses a buffer.
    pub fn after(&mut self, queue: usize, buffer: usize, writes: bool) -> Result {
        self.bind(queue)?;
        let event = event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        self.events.push(event);
        // SAFETY: see above.
        unsafe { event::record(event, self.queues[queue].handle)? };
        let buffer = &mut self.buffers[buffer];
        if writes {
            buffer.written = Some((queue, event));
            buffer.read.clear();
        } else {
            buffer.read.push((queue, event));
        }
        Ok(())
    }

    /// Enqueues a copy between two buffers of any devices, a memset, or a copy from or to the host. Data copied to the host is
    /// checked.
    pub fn operation(&mut self) -> Result {
        let queue = self.rng.usize(..self.queues.len());
        let handle = self.queues[queue].handle;
        let [to, from] = [(); 2].map(|()| self.rng.usize(..self.buffers.len()));
        let length = self.rng.usize(..=LENGTH);
        let [to_start, from_start] = [(); 2].map(|()| self.rng.usize(..=LENGTH - length));
        let address = self.buffers[to].address + to_start as u64;
        let target = to_start..to_start + length;
        let choice = self.rng.u8(..4);
        let writes = choice != 3;

        self.before(queue, to, writes)?;
        let mut bytes = vec![0; length];
        match choice {
            0 if to != from => {
                self.before(queue, from, false)?;
                let source = self.buffers[from].address + from_start as u64;
                // SAFETY: see above.
                unsafe { sys::cuMemcpyAsync(address, source, length, handle) }.result()?;
                bytes.copy_from_slice(&self.buffers[from].data[from_start..from_start + length]);
                self.after(queue, from, false)?;
            }
            0 | 1 => {
                let byte = self.rng.u8(..);
                if handle.is_null() && self.rng.bool() {
                    // SAFETY: see above.
                    unsafe { result::memset_d8_sync(address, byte, length)? };
                } else {
                    // SAFETY: see above.
                    unsafe { result::memset_d8_async(address, byte, length, handle)? };
                }
                bytes.fill(byte);
            }
            2 => {
                self.rng.fill(&mut bytes);
                // SAFETY: see above; the bytes are pageable, so that nothing uses them after the call.
                unsafe { sys::cuMemcpyAsync(address, bytes.as_ptr() as CUdeviceptr, length, handle) }
                    .result()?;
            }
            _ => {
                // SAFETY: as above.
                unsafe { sys::cuMemcpyAsync(bytes.as_mut_ptr() as CUdeviceptr, address, length, handle) }
                    .result()?;
                assert_eq!(bytes, self.buffers[to].data[target.clone()], "copied back on the way");
            }
        }
        self.buffers[to].data[target].copy_from_slice(&bytes);
        self.after(queue, to, writes)
    }

    /// Waits for everything, and checks and frees the buffers.
    pub fn end(mut self) -> Result {
        for context in self.contexts {
            context.bind_to_thread()?;
            result::ctx::synchronize()?;
        }
        // SAFETY: everything is complete, and each handle is destroyed once.
        unsafe {
            for (number, buffer) in self.buffers.iter().enumerate() {
                let mut data = vec![0; LENGTH];
                sys::cuMemcpy(data.as_mut_ptr() as CUdeviceptr, buffer.address, LENGTH).result()?;
                assert_eq!(data, buffer.data, "buffer {number}");
                if buffer.is_pinned {
                    result::free_host(ptr::with_exposed_provenance_mut(buffer.address as usize))?;
                } else {
                    result::free_sync(buffer.address)?;
                }
            }
            for event in self.events.drain(..) {
                event::destroy(event)?;
            }
            for queue in self.queues.iter().filter(|queue| !queue.handle.is_null()) {
                stream::destroy(queue.handle)?;
            }
        }
        Ok(())
    }
}

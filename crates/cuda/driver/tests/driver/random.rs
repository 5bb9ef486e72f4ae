//! Random programs of streams, events and copies: their data is that of the same operations one after another.
//! `LIBNCCL_CUDA_PROGRAMS=12500` in the environment runs so many of each kind.

use std::env;
use std::ptr;

use cudarc::driver::result::{self, event, stream, stream::StreamKind};
use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUstream};
use cudarc::driver::{CudaContext, DriverError};
use fastrand::Rng;

crate::tests! {
    random_programs_give_the_data_of_their_operations_in_sequence
}

/// The bytes of a buffer.
const LENGTH: usize = 96;

/// The programs that each process runs, unless the variable tells another number.
const PROGRAMS: u64 = 500;

fn random_programs_give_the_data_of_their_operations_in_sequence() {
    let programs =
        env::var("LIBNCCL_CUDA_PROGRAMS").ok().and_then(|text| text.parse().ok()).unwrap_or(PROGRAMS);
    let contexts = [0, 1].map(|device| CudaContext::new(device).expect("a device"));
    let seed = env::var("LIBNCCL_CPU_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0_u64);
    for number in 0..programs {
        let program = number + seed * programs;
        if let Err(error) = Program::run(program, &contexts) {
            panic!("program {program}: {error}");
        }
    }
}

/// A stream, and the context that is current when it is used.
#[derive(Clone, Copy)]
struct Queue {
    device: usize,
    handle: CUstream,
    is_default: bool,
}

/// A buffer, its data by the model, and the events behind its last uses.
struct Buffer {
    address: u64,
    is_pinned: bool,
    data: Vec<u8>,
    written: Option<(usize, CUevent)>,
    read: Vec<(usize, CUevent)>,
}

struct Program<'a> {
    rng: Rng,
    contexts: &'a [std::sync::Arc<CudaContext>; 2],
    queues: Vec<Queue>,
    buffers: Vec<Buffer>,
    events: Vec<CUevent>,
}

impl<'a> Program<'a> {
    fn run(number: u64, contexts: &'a [std::sync::Arc<CudaContext>; 2]) -> Result<(), DriverError> {
        let mut program =
            Self { rng: Rng::with_seed(number), contexts, queues: vec![], buffers: vec![], events: vec![] };
        program.begin()?;
        for _ in 0..program.rng.usize(5..40) {
            program.operation()?;
        }
        program.end()
    }

    fn begin(&mut self) -> Result<(), DriverError> {
        for device in 0..2 {
            self.contexts[device].bind_to_thread()?;
            for _ in 0..self.rng.usize(1..4) {
                let kind = if self.rng.bool() { StreamKind::Default } else { StreamKind::NonBlocking };
                self.queues.push(Queue { device, handle: stream::create(kind)?, is_default: false });
            }
            self.queues.push(Queue { device, handle: ptr::null_mut(), is_default: true });
            for _ in 0..self.rng.usize(1..4) {
                let is_pinned = self.rng.u8(..4) == 0;
                // SAFETY: `end` frees it.
                let address = unsafe {
                    if is_pinned {
                        result::malloc_host(LENGTH, 0)? as u64
                    } else {
                        result::malloc_sync(LENGTH)?
                    }
                };
                let mut buffer =
                    Buffer { address, is_pinned, data: vec![0; LENGTH], written: None, read: vec![] };
                self.rng.fill(&mut buffer.data);
                // SAFETY: the buffer is as long as its data.
                unsafe { sys::cuMemcpy(address, buffer.data.as_ptr() as CUdeviceptr, LENGTH) }.result()?;
                self.buffers.push(buffer);
            }
        }
        Ok(())
    }

    /// Makes a stream wait for an earlier use of a buffer, in one of the ways that there are.
    fn order(&mut self, queue: usize, earlier: (usize, CUevent)) -> Result<(), DriverError> {
        let (stream, event) = earlier;
        if stream == queue {
            return Ok(());
        }
        // SAFETY: streams and events live until `end`.
        unsafe {
            match self.rng.u8(..8) {
                0 => event::synchronize(event),
                1 => {
                    let before = self.queues[stream];
                    self.contexts[before.device].bind_to_thread()?;
                    stream::synchronize(before.handle)?;
                    self.contexts[self.queues[queue].device].bind_to_thread()
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

    fn before(&mut self, queue: usize, buffer: usize, writes: bool) -> Result<(), DriverError> {
        let mut earlier = Vec::from_iter(self.buffers[buffer].written);
        if writes {
            earlier.extend_from_slice(&self.buffers[buffer].read);
        }
        earlier.into_iter().try_for_each(|earlier| self.order(queue, earlier))
    }

    fn after(&mut self, queue: usize, buffer: usize, writes: bool) -> Result<(), DriverError> {
        let event = event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        self.events.push(event);
        // SAFETY: both live until `end`.
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

    fn operation(&mut self) -> Result<(), DriverError> {
        let queue = self.rng.usize(..self.queues.len());
        let Queue { device, handle, is_default } = self.queues[queue];
        self.contexts[device].bind_to_thread()?;
        let (to, from) = (self.rng.usize(..self.buffers.len()), self.rng.usize(..self.buffers.len()));
        let length = self.rng.usize(..=LENGTH);
        let [to_start, from_start] = [(); 2].map(|()| self.rng.usize(..=LENGTH - length));
        let [to_address, from_address] = [(to, to_start), (from, from_start)]
            .map(|(buffer, start)| self.buffers[buffer].address + start as u64);
        let target = to_start..to_start + length;
        let choice = self.rng.u8(..4);

        self.before(queue, to, true)?;
        if choice == 0 && to != from {
            self.before(queue, from, false)?;
            // SAFETY: ranges lie in buffers, which live until `end`.
            unsafe { sys::cuMemcpyAsync(to_address, from_address, length, handle) }.result()?;
            let source = self.buffers[from].data[from_start..from_start + length].to_vec();
            self.buffers[to].data[target].copy_from_slice(&source);
            self.after(queue, from, false)?;
        } else if choice == 1 {
            let byte = self.rng.u8(..);
            let filled = if is_default && self.rng.bool() {
                // SAFETY: as above.
                unsafe { result::memset_d8_sync(to_address, byte, length) }
            } else {
                // SAFETY: as above.
                unsafe { result::memset_d8_async(to_address, byte, length, handle) }
            };
            filled?;
            self.buffers[to].data[target].fill(byte);
        } else if choice == 2 {
            let mut bytes = vec![0; length];
            self.rng.fill(&mut bytes);
            // SAFETY: as above; the bytes are pageable, so that nothing uses them after the call.
            unsafe { sys::cuMemcpyAsync(to_address, bytes.as_ptr() as CUdeviceptr, length, handle) }
                .result()?;
            self.buffers[to].data[target].copy_from_slice(&bytes);
        } else {
            let mut bytes = vec![0; length];
            let address = self.buffers[to].address + to_start as u64;
            // SAFETY: as above.
            unsafe { sys::cuMemcpyAsync(bytes.as_mut_ptr() as CUdeviceptr, address, length, handle) }
                .result()?;
            assert_eq!(bytes, self.buffers[to].data[target], "copied back on the way");
        }
        self.after(queue, to, true)
    }

    fn end(mut self) -> Result<(), DriverError> {
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
            for queue in self.queues.iter().filter(|queue| !queue.is_default) {
                stream::destroy(queue.handle)?;
            }
        }
        Ok(())
    }
}

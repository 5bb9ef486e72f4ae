//! Random programs of streams, events, copies, collectives and messages, whose data is that of their operations one after
//! another. The arguments are the number of the first one and how many there are.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::result::{self, event, stream, stream::StreamKind};
use cudarc::driver::sys::{self as cuda, CUdeviceptr, CUevent, CUstream};
use cudarc::driver::{CudaContext, DriverError};
use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t::ncclUint8, ncclRedOp_t};
use fastrand::Rng;
use libnccl_cuda_consumer::check;

/// The bytes of a buffer, which any number of ranks up to [`RANKS`] divides.
const LENGTH: usize = 96;
const RANKS: usize = 4;
const BUFFERS: usize = 3;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok()).expect("a number");
    let (first, count) = (number(), number());
    let contexts = [0, 1, 2, 3].map(|device| CudaContext::new(device).unwrap());
    let comms: Vec<Vec<ncclComm_t>> = (2..=RANKS).map(communicators).collect();
    for program in first..first + count {
        let mut rng = Rng::with_seed(program);
        let comms = rng.choice(&comms).expect("several");
        Program::new(rng, &contexts[..comms.len()], comms).run().unwrap_or_else(|error| {
            panic!("program {program}: {error}");
        });
    }
    for comm in comms.into_iter().flatten() {
        // SAFETY: a communicator that is not used any more.
        check(unsafe { sys::ncclCommDestroy(comm) });
    }
    println!("ok");
}

/// Creates a communicator of the first devices, one rank each.
fn communicators(ranks: usize) -> Vec<ncclComm_t> {
    let mut comms = vec![ptr::null_mut(); ranks];
    // SAFETY: as many out-parameters; without a list, the first devices are meant.
    check(unsafe { sys::ncclCommInitAll(comms.as_mut_ptr(), ranks as i32, ptr::null()) });
    comms
}

/// A use of a buffer: its stream, and the event behind it.
type Use = (usize, CUevent);

struct Queue {
    device: usize,
    handle: CUstream,
}

/// A buffer, its data by the model, and its uses that later ones have to wait for.
struct Buffer {
    address: CUdeviceptr,
    data: Vec<u8>,
    written: Option<Use>,
    read: Vec<Use>,
}

/// The part of a rank in an operation of NCCL: its stream and buffers.
#[derive(Clone, Copy)]
struct Part {
    comm: ncclComm_t,
    queue: usize,
    send: usize,
    recv: usize,
}

struct Program<'a> {
    rng: Rng,
    contexts: &'a [Arc<CudaContext>],
    comms: &'a [ncclComm_t],
    queues: Vec<Queue>,
    /// [`BUFFERS`] for each device.
    buffers: Vec<Buffer>,
    events: Vec<CUevent>,
}

type Result<T = ()> = std::result::Result<T, DriverError>;

// SAFETY, for all methods below: streams, events and buffers live until `end`, and ranges are inside their buffers.

impl<'a> Program<'a> {
    fn new(rng: Rng, contexts: &'a [Arc<CudaContext>], comms: &'a [ncclComm_t]) -> Self {
        Self { rng, contexts, comms, queues: vec![], buffers: vec![], events: vec![] }
    }

    fn run(mut self) -> Result {
        self.begin()?;
        for _ in 0..self.rng.usize(5..30) {
            match self.rng.u8(..3) {
                0 => self.copy()?,
                1 => self.host()?,
                _ => self.communicate()?,
            }
        }
        self.end()
    }

    fn begin(&mut self) -> Result {
        for device in 0..self.contexts.len() {
            self.contexts[device].bind_to_thread()?;
            self.queues.push(Queue { device, handle: ptr::null_mut() });
            for _ in 0..self.rng.usize(1..3) {
                let kind = if self.rng.bool() { StreamKind::Default } else { StreamKind::NonBlocking };
                self.queues.push(Queue { device, handle: stream::create(kind)? });
            }
            for _ in 0..BUFFERS {
                let mut data = vec![0; LENGTH];
                self.rng.fill(&mut data);
                // SAFETY: `end` frees it.
                let address = unsafe { result::malloc_sync(LENGTH)? };
                // SAFETY: see above.
                unsafe { result::memcpy_htod_sync(address, &data)? };
                self.buffers.push(Buffer { address, data, written: None, read: vec![] });
            }
        }
        Ok(())
    }

    /// Makes a stream wait for an earlier use of a buffer, if it is on another one.
    fn order(&mut self, queue: usize, (earlier, event): Use) -> Result {
        let flags = cuda::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        match self.rng.u8(..8) {
            _ if earlier == queue => Ok(()),
            // SAFETY: see above.
            0 => unsafe { event::synchronize(event) },
            // SAFETY: see above.
            _ => unsafe { stream::wait_event(self.queues[queue].handle, event, flags) },
        }
    }

    /// Makes a stream, whose device becomes the current one, wait for what its use of a buffer comes after.
    fn before(&mut self, queue: usize, buffer: usize, writes: bool) -> Result {
        self.contexts[self.queues[queue].device].bind_to_thread()?;
        let mut earlier = Vec::from_iter(self.buffers[buffer].written);
        if writes {
            earlier.extend_from_slice(&self.buffers[buffer].read);
        }
        earlier.into_iter().try_for_each(|earlier| self.order(queue, earlier))
    }

    /// Notes the use of a buffer by what was enqueued last.
    fn after(&mut self, queue: usize, buffer: usize, writes: bool) -> Result {
        self.contexts[self.queues[queue].device].bind_to_thread()?;
        let event = event::create(cuda::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
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

    /// A random length, and where as many bytes begin in two buffers.
    fn ranges(&mut self) -> (usize, [usize; 2]) {
        let length = self.rng.usize(..=LENGTH);
        (length, [(); 2].map(|()| self.rng.usize(..=LENGTH - length)))
    }

    fn address(&self, buffer: usize, start: usize) -> CUdeviceptr {
        self.buffers[buffer].address + start as u64
    }

    /// Copies between two buffers of any devices.
    fn copy(&mut self) -> Result {
        let [from, to] = [(); 2].map(|()| self.rng.usize(..self.buffers.len()));
        if from == to {
            return Ok(());
        }
        let queue = self.rng.usize(..self.queues.len());
        let (length, [source, target]) = self.ranges();
        self.before(queue, from, false)?;
        self.before(queue, to, true)?;
        let addresses = [self.address(to, target), self.address(from, source)];
        // SAFETY: see above.
        unsafe { cuda::cuMemcpyAsync(addresses[0], addresses[1], length, self.queues[queue].handle) }
            .result()?;
        let bytes = self.buffers[from].data[source..source + length].to_vec();
        self.buffers[to].data[target..target + length].copy_from_slice(&bytes);
        self.after(queue, from, false)?;
        self.after(queue, to, true)
    }

    /// Writes a buffer from the host, or reads and checks it.
    fn host(&mut self) -> Result {
        let queue = self.rng.usize(..self.queues.len());
        let buffer = self.rng.usize(..self.buffers.len());
        let (length, [start, _]) = self.ranges();
        let writes = self.rng.bool();
        self.before(queue, buffer, writes)?;
        let (address, handle) = (self.address(buffer, start), self.queues[queue].handle);
        let mut bytes = vec![0; length];
        if writes {
            self.rng.fill(&mut bytes);
            // SAFETY: see above; the bytes are pageable, so that nothing uses them after the call.
            unsafe { result::memcpy_htod_async(address, &bytes, handle)? };
            self.buffers[buffer].data[start..start + length].copy_from_slice(&bytes);
        } else {
            // SAFETY: as above.
            unsafe { result::memcpy_dtoh_async(&mut bytes, address, handle)? };
            assert_eq!(bytes, self.buffers[buffer].data[start..start + length], "copied back on the way");
        }
        self.after(queue, buffer, writes)
    }

    /// Draws a stream and two buffers of each rank's device, the same one if it may be in place.
    fn parts(&mut self, may_be_in_place: bool) -> Vec<Part> {
        let mut parts = vec![];
        for (device, &comm) in self.comms.iter().enumerate() {
            let is_own = |&queue: &usize| self.queues[queue].device == device;
            let queues: Vec<usize> = (0..self.queues.len()).filter(is_own).collect();
            let queue = self.rng.choice(queues).expect("the default stream");
            let send = self.rng.usize(..BUFFERS);
            let step = self.rng.usize(usize::from(!may_be_in_place)..BUFFERS);
            let [send, recv] = [send, (send + step) % BUFFERS].map(|buffer| device * BUFFERS + buffer);
            parts.push(Part { comm, queue, send, recv });
        }
        parts
    }

    /// Calls NCCL in a group, once for each rank.
    fn call(&mut self, parts: &[Part], call: impl Fn(&Self, usize, Part)) -> Result {
        for part in parts {
            self.before(part.queue, part.send, false)?;
            self.before(part.queue, part.recv, true)?;
        }
        // SAFETY: has no arguments.
        check(unsafe { sys::ncclGroupStart() });
        for (rank, &part) in parts.iter().enumerate() {
            call(self, rank, part);
        }
        // SAFETY: has no arguments.
        check(unsafe { sys::ncclGroupEnd() });
        for part in parts {
            self.after(part.queue, part.send, false)?;
            self.after(part.queue, part.recv, true)?;
        }
        Ok(())
    }

    /// A collective of all ranks, or a message of each to another one.
    fn communicate(&mut self) -> Result {
        let ranks = self.comms.len();
        let (count, part) = (self.rng.usize(1..=LENGTH), self.rng.usize(1..=LENGTH / ranks));
        let root = self.rng.usize(..ranks);
        let kind = self.rng.u8(..5);
        let parts = self.parts(kind == 0 || kind == 1);
        let sent: Vec<Vec<u8>> = parts.iter().map(|part| self.buffers[part.send].data.clone()).collect();
        let pointers = |program: &Self, part: Part| {
            let [send, recv] = [part.send, part.recv].map(|buffer| program.buffers[buffer].address);
            (send as *const c_void, recv as *mut c_void, program.queues[part.queue].handle.cast())
        };
        let received: Vec<Vec<u8>> = match kind {
            0 => {
                let (op, reduce): (_, fn(u8, u8) -> u8) = match self.rng.bool() {
                    true => (ncclRedOp_t::ncclSum, u8::wrapping_add),
                    false => (ncclRedOp_t::ncclMax, u8::max),
                };
                self.call(&parts, |program, _, part| {
                    let (send, recv, stream) = pointers(program, part);
                    // SAFETY: see above.
                    check(unsafe { sys::ncclAllReduce(send, recv, count, ncclUint8, op, part.comm, stream) });
                })?;
                vec![reduced(&sent, reduce)[..count].to_vec(); ranks]
            }
            1 => {
                self.call(&parts, |program, _, part| {
                    let (send, recv, stream) = pointers(program, part);
                    // SAFETY: see above.
                    check(unsafe {
                        sys::ncclBroadcast(send, recv, count, ncclUint8, root as i32, part.comm, stream)
                    });
                })?;
                vec![sent[root][..count].to_vec(); ranks]
            }
            2 => {
                self.call(&parts, |program, _, own| {
                    let (send, recv, stream) = pointers(program, own);
                    // SAFETY: see above.
                    check(unsafe { sys::ncclAllGather(send, recv, part, ncclUint8, own.comm, stream) });
                })?;
                vec![sent.iter().flat_map(|data| &data[..part]).copied().collect(); ranks]
            }
            3 => {
                let op = ncclRedOp_t::ncclSum;
                self.call(&parts, |program, _, own| {
                    let (send, recv, stream) = pointers(program, own);
                    // SAFETY: see above.
                    check(unsafe {
                        sys::ncclReduceScatter(send, recv, part, ncclUint8, op, own.comm, stream)
                    });
                })?;
                let sum = reduced(&sent, u8::wrapping_add);
                (0..ranks).map(|rank| sum[rank * part..(rank + 1) * part].to_vec()).collect()
            }
            // Each sends to the rank so many further on.
            _ => {
                self.call(&parts, |program, rank, part| {
                    let (send, recv, stream) = pointers(program, part);
                    let (to, from) = ((rank + root) % ranks, (rank + ranks - root) % ranks);
                    // SAFETY: see above.
                    unsafe {
                        check(sys::ncclSend(send, count, ncclUint8, to as i32, part.comm, stream));
                        check(sys::ncclRecv(recv, count, ncclUint8, from as i32, part.comm, stream));
                    }
                })?;
                (0..ranks).map(|rank| sent[(rank + ranks - root) % ranks][..count].to_vec()).collect()
            }
        };
        for (part, bytes) in parts.iter().zip(received) {
            self.buffers[part.recv].data[..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn end(mut self) -> Result {
        for context in self.contexts {
            context.bind_to_thread()?;
            result::ctx::synchronize()?;
        }
        for (number, buffer) in self.buffers.iter().enumerate() {
            let mut data = vec![0; LENGTH];
            // SAFETY: everything is complete, and each buffer is freed once.
            unsafe {
                result::memcpy_dtoh_sync(&mut data, buffer.address)?;
                result::free_sync(buffer.address)?;
            }
            assert_eq!(data, buffer.data, "buffer {number}");
        }
        for event in self.events.drain(..) {
            // SAFETY: destroyed once.
            unsafe { event::destroy(event)? };
        }
        for queue in self.queues.iter().filter(|queue| !queue.handle.is_null()) {
            // SAFETY: destroyed once.
            unsafe { stream::destroy(queue.handle)? };
        }
        Ok(())
    }
}

/// Reduces the data of all ranks, byte by byte.
fn reduced(data: &[Vec<u8>], reduce: fn(u8, u8) -> u8) -> Vec<u8> {
    let byte = |index| data.iter().map(|data: &Vec<u8>| data[index]).reduce(reduce).unwrap_or_default();
    (0..LENGTH).map(byte).collect()
}

//! Random programs of streams, events, copies, collectives, sends and receives, whose data must equal sequential execution.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use cuda_test_support::random::{LENGTH, Program, Result as CudaResult};
use cudarc::driver::CudaContext;
use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t::ncclUint8, ncclRedOp_t};

use crate::rank::{check, group};

const BUFFERS: usize = 3;

/// Runs this many programs, starting with this number, on two devices, three, and all.
pub(crate) fn run(first: usize, count: usize) {
    let devices = CudaContext::device_count().unwrap() as usize;
    let contexts: Vec<_> = (0..devices).map(|device| CudaContext::new(device).unwrap()).collect();
    let comms = [2, 3, devices].map(communicators);
    for number in first..first + count {
        let comms = &comms[number % comms.len()];
        let program = Program::new(number as u64, &contexts[..comms.len()]);
        Communicating { program, comms }.run().unwrap_or_else(|error| panic!("program {number}: {error}"));
    }
    for comm in comms.into_iter().flatten() {
        // SAFETY: a communicator that is not used any more.
        check(unsafe { sys::ncclCommDestroy(comm) });
    }
}

/// Creates a communicator of the first devices, one rank each.
fn communicators(ranks: usize) -> Vec<ncclComm_t> {
    let mut comms = vec![ptr::null_mut(); ranks];
    // SAFETY: as many out-parameters; without a list, the first devices are meant.
    check(unsafe { sys::ncclCommInitAll(comms.as_mut_ptr(), ranks as i32, ptr::null()) });
    comms
}

/// The part of a rank in an operation of NCCL: its stream and buffers.
#[derive(Clone, Copy)]
struct Part {
    comm: ncclComm_t,
    queue: usize,
    send: usize,
    recv: usize,
}

/// A program with [`BUFFERS`] for each device, and a rank on it.
struct Communicating<'a> {
    program: Program<'a>,
    comms: &'a [ncclComm_t],
}

// SAFETY, for all methods below: streams and buffers live until the end of the program.

impl Communicating<'_> {
    fn run(mut self) -> CudaResult {
        self.program.begin(BUFFERS..BUFFERS + 1, false)?;
        for _ in 0..self.program.rng.usize(5..30) {
            if self.program.rng.u8(..3) == 0 { self.communicate()? } else { self.program.operation()? }
        }
        self.program.end()
    }

    /// Draws a stream and two buffers of each rank's device, the same one if it may be in place.
    fn parts(&mut self, may_be_in_place: bool) -> Vec<Part> {
        let mut parts = vec![];
        for (device, &comm) in self.comms.iter().enumerate() {
            let is_own = |&queue: &usize| self.program.queues[queue].device == device;
            let queues: Vec<usize> = (0..self.program.queues.len()).filter(is_own).collect();
            let queue = self.program.rng.choice(queues).expect("the default stream");
            let send = self.program.rng.usize(..BUFFERS);
            let step = self.program.rng.usize(usize::from(!may_be_in_place)..BUFFERS);
            let [send, recv] = [send, (send + step) % BUFFERS].map(|buffer| device * BUFFERS + buffer);
            parts.push(Part { comm, queue, send, recv });
        }
        parts
    }

    /// Calls NCCL in a group, once for each rank.
    fn call(&mut self, parts: &[Part], call: impl Fn(&Program<'_>, usize, Part)) -> CudaResult {
        for part in parts {
            self.program.before(part.queue, part.send, false)?;
            self.program.before(part.queue, part.recv, true)?;
        }
        check(group(|| parts.iter().enumerate().for_each(|(rank, &part)| call(&self.program, rank, part))));
        for part in parts {
            self.program.after(part.queue, part.send, false)?;
            self.program.after(part.queue, part.recv, true)?;
        }
        Ok(())
    }

    /// A collective of all ranks, or a send from each to another one.
    fn communicate(&mut self) -> CudaResult {
        let ranks = self.comms.len();
        let kind = self.program.rng.u8(..6);
        let parts = self.parts(kind < 3);
        let most = if matches!(kind, 3 | 4) { LENGTH / ranks } else { LENGTH };
        let (count, root) = (self.program.rng.usize(1..=most), self.program.rng.usize(..ranks));
        // Each rank sends to the one at this distance.
        let distance = root;
        let sent: Vec<Vec<u8>> =
            parts.iter().map(|part| self.program.buffers[part.send].data.clone()).collect();
        self.call(&parts, |program, rank, part| {
            let [send, recv] = [part.send, part.recv].map(|buffer| program.buffers[buffer].address);
            let (send, recv) = (send as *const c_void, recv as *mut c_void);
            let (comm, stream) = (part.comm, program.queues[part.queue].handle.cast());
            let (to, from) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
            let (sum, max) = (ncclRedOp_t::ncclSum, ncclRedOp_t::ncclMax);
            // SAFETY: see above.
            check(unsafe {
                match kind {
                    0 => sys::ncclAllReduce(send, recv, count, ncclUint8, sum, comm, stream),
                    1 => sys::ncclAllReduce(send, recv, count, ncclUint8, max, comm, stream),
                    2 => sys::ncclBroadcast(send, recv, count, ncclUint8, root as i32, comm, stream),
                    3 => sys::ncclAllGather(send, recv, count, ncclUint8, comm, stream),
                    4 => sys::ncclReduceScatter(send, recv, count, ncclUint8, sum, comm, stream),
                    _ => {
                        check(sys::ncclSend(send, count, ncclUint8, to as i32, comm, stream));
                        sys::ncclRecv(recv, count, ncclUint8, from as i32, comm, stream)
                    }
                }
            });
        })?;
        for (rank, part) in parts.iter().enumerate() {
            let bytes = match kind {
                0 => reduced(&sent, 0, count, u8::wrapping_add),
                1 => reduced(&sent, 0, count, u8::max),
                2 => sent[root][..count].to_vec(),
                3 => sent.iter().flat_map(|data| &data[..count]).copied().collect(),
                4 => reduced(&sent, rank * count, count, u8::wrapping_add),
                _ => sent[(rank + ranks - distance) % ranks][..count].to_vec(),
            };
            self.program.buffers[part.recv].data[..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}

/// Reduces the data of all ranks from a byte on, byte by byte.
fn reduced(data: &[Vec<u8>], start: usize, count: usize, reduce: fn(u8, u8) -> u8) -> Vec<u8> {
    let byte = |index: usize| data.iter().map(|data| data[index]).reduce(reduce).unwrap_or_default();
    (start..start + count).map(byte).collect()
}

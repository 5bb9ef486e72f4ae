//! Programs that lack a synchronization with one of NCCL's operations, by name: rank 0 of two makes the mistake, with
//! the last of a number of such operations in a row.
//!
//! Their results are undefined; they only have to terminate.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::Barrier;

use cudarc::driver::result::{self, event, stream};
use cudarc::driver::sys::{
    CUdeviceptr, CUevent_flags, CUevent_wait_flags, CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode,
};
use cudarc::nccl::sys::{self, ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum, ncclWindow_t};

use crate::rank::{Rank, check, run_ranks};

/// The elements of a buffer.
const LENGTH: usize = 1 << 16;
const BYTES: usize = 4 * LENGTH;

pub(crate) fn run(name: &str, count: usize) {
    match name {
        "copy_back_before_a_collective_is_done" => planted(count, |program| {
            program.all_reduce(program.to);
            // SAFETY: see below.
            unsafe { result::memcpy_dtoh_sync(&mut vec![0_u8; BYTES], program.to) }.unwrap();
        }),
        "free_under_a_collective" => planted(count, Program::free_under_a_collective),
        "send_buffer_of_a_collective_refilled" => planted(count, |program| {
            program.all_reduce(program.to);
            program.copy(program.from, program.target);
        }),
        "send_buffer_of_a_message_refilled" => message(count),
        "window_read_under_a_collective" => windows(count, |program, memory, _, rank, _| {
            program.all_reduce(memory);
            if rank == 0 {
                program.copy(program.target, memory);
            }
        }),
        "window_written_under_a_put" => windows(count, |program, memory, window, rank, _| {
            program.put_or_wait(memory, window, rank);
            if rank == 0 {
                program.copy(memory, program.target);
            }
        }),
        "window_read_under_a_put_of_another_rank" => windows(count, |program, memory, window, rank, both| {
            if rank == 0 {
                program.put_or_wait(memory, window, rank);
                both.wait();
            } else {
                both.wait();
                program.copy(program.target, memory);
                program.put_or_wait(memory, window, rank);
            }
        }),
        "buffer_of_a_graph_refilled_during_its_replay" => graph(count),
        other => panic!("there is no program {other}"),
    }
}

/// Buffers and nonblocking streams of a rank. They live until the process ends, unless the program is about that.
struct Program {
    comm: sys::ncclComm_t,
    stream: CUstream,
    other: CUstream,
    from: CUdeviceptr,
    to: CUdeviceptr,
    target: CUdeviceptr,
    /// The number of NCCL's operations in a row.
    count: usize,
}

// SAFETY, for all functions below: handles and memory live as `Program` says.

impl Program {
    fn new(rank: &Rank, count: usize) -> Self {
        rank.context.bind_to_thread().unwrap();
        let [stream, other] = [(); 2].map(|()| stream::create(stream::StreamKind::NonBlocking).unwrap());
        // SAFETY: see above.
        let [from, to, target] = [(); 3].map(|()| unsafe { result::malloc_sync(BYTES) }.unwrap());
        Self { comm: rank.comm, stream, other, from, to, target, count }
    }

    fn all_reduce(&self, to: CUdeviceptr) {
        let (from, to, stream) = (self.from as *const c_void, to as *mut c_void, self.stream.cast());
        for _ in 0..self.count {
            // SAFETY: see above.
            check(unsafe { sys::ncclAllReduce(from, to, LENGTH, ncclFloat32, ncclSum, self.comm, stream) });
        }
    }

    /// Copies on the other stream.
    fn copy(&self, to: CUdeviceptr, from: CUdeviceptr) {
        // SAFETY: see above.
        unsafe { result::memcpy_dtod_async(to, from, BYTES, self.other) }.unwrap();
    }

    /// Memory in the order of one stream is freed there, while the collective is on another.
    fn free_under_a_collective(&self) {
        // SAFETY: freed once, which is the mistake; the emulation keeps the bytes until the collective is done.
        unsafe {
            let buffer = result::malloc_async(self.other, BYTES).unwrap();
            let allocated = event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
            event::record(allocated, self.other).unwrap();
            stream::wait_event(self.stream, allocated, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT).unwrap();
            self.all_reduce(buffer);
            result::free_async(buffer, self.other).unwrap();
        }
    }

    /// Rank 0 puts its part into the part of rank 1, which waits for the put.
    fn put_or_wait(&self, memory: CUdeviceptr, window: ncclWindow_t, rank: usize) {
        let (from, comm, stream) = (memory as *const c_void, self.comm, self.stream.cast());
        let mut signal = sys::ncclWaitSignalDesc_t { opCnt: 1, peer: 0, sigIdx: 0, ctx: 0 };
        for _ in 0..self.count {
            // SAFETY: see above.
            check(unsafe {
                match rank {
                    0 => sys::ncclPutSignal(from, LENGTH, ncclFloat32, 1, window, 0, 0, 0, 0, comm, stream),
                    _ => sys::ncclWaitSignal(1, &raw mut signal, comm, stream),
                }
            });
        }
    }
}

/// Runs both ranks, each with its part, until all is done. No rank waits for its work before both have done their part: the
/// other could learn from it that its own work is done.
fn two_ranks(count: usize, part: impl Fn(&Rank, &Program) + Sync) {
    let parts_done = Barrier::new(2);
    run_ranks(2, |rank| {
        let program = Program::new(&rank, count);
        part(&rank, &program);
        parts_done.wait();
        rank.context.synchronize().unwrap();
        rank.destroy();
    });
}

/// Rank 0 runs the closure. Rank 1 joins its collectives, and enqueues them first.
fn planted(count: usize, mistake: impl Fn(&Program) + Sync) {
    let enqueued = Barrier::new(2);
    two_ranks(count, |rank, program| match rank.number {
        0 => {
            enqueued.wait();
            mistake(program);
        }
        _ => {
            program.all_reduce(program.to);
            enqueued.wait();
        }
    });
}

/// The buffer of a send is refilled before the send has run.
fn message(count: usize) {
    two_ranks(count, |rank, program| {
        let (from, to) = (program.from as *const c_void, program.to as *mut c_void);
        let (comm, stream) = (program.comm, program.stream.cast());
        for _ in 0..count {
            // SAFETY: see above.
            check(unsafe {
                match rank.number {
                    0 => sys::ncclSend(from, LENGTH, ncclFloat32, 1, comm, stream),
                    _ => sys::ncclRecv(to, LENGTH, ncclFloat32, 0, comm, stream),
                }
            });
        }
        if rank.number == 0 {
            program.copy(program.from, program.target);
        }
    });
}

/// A graph is replayed, and the buffer that its collective reads is filled for the next launch too early.
fn graph(count: usize) {
    two_ranks(count, |rank, program| {
        // SAFETY: handles and memory live as `Program` says.
        unsafe {
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            stream::begin_capture(program.stream, mode).unwrap();
            program.all_reduce(program.to);
            let graph = stream::end_capture(program.stream).unwrap();
            let graph = result::graph::instantiate(graph, CUgraphInstantiate_flags(0)).unwrap();
            result::graph::launch(graph, program.stream).unwrap();
            stream::synchronize(program.stream).unwrap();
            program.copy(program.from, program.target);
            stream::synchronize(program.other).unwrap();
            result::graph::launch(graph, program.stream).unwrap();
        }
        if rank.number == 0 {
            program.copy(program.from, program.target);
        }
    });
}

/// Runs both ranks with a window over memory of each. The closure gets the memory, the window, and the number of the rank.
fn windows(count: usize, part: impl Fn(&Program, CUdeviceptr, ncclWindow_t, usize, &Barrier) + Sync) {
    /// `NCCL_WIN_COLL_SYMMETRIC`, which puts need.
    const COLL_SYMMETRIC: i32 = 1;
    let both = Barrier::new(2);
    two_ranks(count, |rank, program| {
        let (mut memory, mut window) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: valid out-parameters, and memory that is freed after its last use.
        unsafe {
            check(sys::ncclMemAlloc(&raw mut memory, BYTES));
            check(sys::ncclCommWindowRegister(rank.comm, memory, BYTES, &raw mut window, COLL_SYMMETRIC));
            part(program, memory as CUdeviceptr, window, rank.number, &both);
            both.wait();
            rank.context.synchronize().unwrap();
            check(sys::ncclCommWindowDeregister(rank.comm, window));
            check(sys::ncclMemFree(memory));
        }
    });
}

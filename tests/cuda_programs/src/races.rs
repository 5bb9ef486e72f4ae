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
    CUdeviceptr, CUevent, CUevent_flags, CUevent_wait_flags, CUgraphInstantiate_flags, CUstream,
    CUstreamCaptureMode,
};
use cudarc::nccl::sys::{self, ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum, ncclWindow_t};

use crate::rank::{Rank, check, run_ranks};

/// The elements of a buffer.
const LENGTH: usize = 1 << 16;
const BYTES: usize = 4 * LENGTH;

pub(crate) fn run(name: &str, count: usize) {
    match name {
        "copy_back_before_a_collective_is_done" => planted(count, |program| {
            program.all_reduce(program.stream);
            program.copy_back();
        }),
        "result_used_on_another_stream" => planted(count, |program| {
            program.all_reduce(program.stream);
            program.copy_result(program.other);
        }),
        "free_under_a_collective" => free(count),
        "send_buffer_of_a_collective_refilled" => planted(count, |program| {
            program.all_reduce(program.stream);
            program.refill(program.other);
        }),
        "send_buffer_of_a_message_refilled" => message(count),
        "window_read_under_a_collective" => {
            windows(count, |window, rank| window.read_under_a_collective(rank));
        }
        "window_written_under_a_put" => windows(count, |window, rank| window.written_under_a_put(rank)),
        "window_read_under_a_put_of_another_rank" => {
            let were_put = Barrier::new(2);
            windows(count, |window, rank| window.read_under_a_put(rank, &were_put));
        }
        "collective_on_the_default_stream" => planted(count, |program| {
            program.all_reduce(ptr::null_mut());
            program.copy_result(program.other);
        }),
        "event_recorded_before_the_collective" => planted(count, |program| {
            let event = record(program.stream);
            program.all_reduce(program.stream);
            wait(program.other, event);
            program.copy_result(program.other);
        }),
        "wait_for_an_event_of_another_stream" => planted(count, |program| {
            program.all_reduce(program.stream);
            let _right = record(program.stream);
            wait(program.other, record(program.third));
            program.copy_result(program.other);
        }),
        "pinned_memory_freed_under_a_collective" => pinned(count),
        "buffer_of_a_graph_refilled_during_its_replay" => graph(count),
        other => panic!("there is no program {other}"),
    }
}

/// Buffers and nonblocking streams of a rank. They live until the process ends, unless the program is about that.
struct Program {
    comm: sys::ncclComm_t,
    stream: CUstream,
    other: CUstream,
    third: CUstream,
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
        let [stream, other, third] =
            [(); 3].map(|()| stream::create(stream::StreamKind::NonBlocking).unwrap());
        // SAFETY: see above.
        let [from, to, target] = [(); 3].map(|()| unsafe { result::malloc_sync(BYTES) }.unwrap());
        Self { comm: rank.comm, stream, other, third, from, to, target, count }
    }

    fn all_reduce(&self, stream: CUstream) {
        self.all_reduce_between(self.from, self.to, stream);
    }

    fn all_reduce_between(&self, from: CUdeviceptr, to: CUdeviceptr, stream: CUstream) {
        let (from, to) = (from as *const c_void, to as *mut c_void);
        for _ in 0..self.count {
            // SAFETY: see above.
            check(unsafe {
                sys::ncclAllReduce(from, to, LENGTH, ncclFloat32, ncclSum, self.comm, stream.cast())
            });
        }
    }

    /// Copies the result to the host, which waits for that copy alone.
    fn copy_back(&self) {
        // SAFETY: see above.
        unsafe { result::memcpy_dtoh_sync(&mut vec![0_u8; BYTES], self.to) }.unwrap();
    }

    fn copy_result(&self, stream: CUstream) {
        // SAFETY: see above.
        unsafe { result::memcpy_dtod_async(self.target, self.to, BYTES, stream) }.unwrap();
    }

    fn refill(&self, stream: CUstream) {
        // SAFETY: see above.
        unsafe { result::memcpy_dtod_async(self.from, self.target, BYTES, stream) }.unwrap();
    }
}

fn record(stream: CUstream) -> CUevent {
    let event = event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
    // SAFETY: see above.
    unsafe { event::record(event, stream) }.unwrap();
    event
}

fn wait(stream: CUstream, event: CUevent) {
    // SAFETY: see above.
    unsafe { stream::wait_event(stream, event, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }.unwrap();
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
            program.all_reduce(program.stream);
            enqueued.wait();
        }
    });
}

/// Memory in the order of one stream is freed there, while the collective is on another.
fn free(count: usize) {
    planted(count, |program| {
        // SAFETY: freed once, which is the mistake; the emulation keeps the bytes until the collective is done.
        unsafe {
            let buffer = result::malloc_async(program.other, BYTES).unwrap();
            wait(program.stream, record(program.other));
            program.all_reduce_between(program.from, buffer, program.stream);
            result::free_async(buffer, program.other).unwrap();
        }
    });
}

/// The buffer of a send is refilled before the send has run.
fn message(count: usize) {
    two_ranks(count, |rank, program| {
        let peer = 1 - rank.number as i32;
        let (from, to) = (program.from as *const c_void, program.to as *mut c_void);
        let stream = program.stream.cast();
        for _ in 0..count {
            // SAFETY: see above.
            check(unsafe {
                match rank.number {
                    0 => sys::ncclSend(from, LENGTH, ncclFloat32, peer, program.comm, stream),
                    _ => sys::ncclRecv(to, LENGTH, ncclFloat32, peer, program.comm, stream),
                }
            });
        }
        if rank.number == 0 {
            program.refill(program.other);
        }
    });
}

/// Pinned memory is freed while a collective writes it.
fn pinned(count: usize) {
    planted(count, |program| {
        // SAFETY: freed once; the free waits, even if a race is reported.
        unsafe {
            let memory = result::malloc_host(BYTES, 0).unwrap();
            program.all_reduce_between(program.from, memory as CUdeviceptr, program.stream);
            result::free_host(memory).unwrap();
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
            program.all_reduce(program.stream);
            let graph = stream::end_capture(program.stream).unwrap();
            let graph = result::graph::instantiate(graph, CUgraphInstantiate_flags(0)).unwrap();
            result::graph::launch(graph, program.stream).unwrap();
            stream::synchronize(program.stream).unwrap();
            program.refill(program.other);
            stream::synchronize(program.other).unwrap();
            result::graph::launch(graph, program.stream).unwrap();
        }
        if rank.number == 0 {
            program.refill(program.other);
        }
    });
}

/// `NCCL_WIN_COLL_SYMMETRIC`, which puts need.
const COLL_SYMMETRIC: i32 = 1;

/// A window over memory of each rank.
struct Window<'a> {
    program: &'a Program,
    memory: CUdeviceptr,
    window: ncclWindow_t,
}

impl Window<'_> {
    /// The result of a collective is copied out of the window before it is there.
    fn read_under_a_collective(&self, rank: usize) {
        let Program { from, target, stream, other, .. } = *self.program;
        self.program.all_reduce_between(from, self.memory, stream);
        if rank == 0 {
            // SAFETY: see above.
            unsafe { result::memcpy_dtod_async(target, self.memory, BYTES, other) }.unwrap();
        }
    }

    /// The rank's own part is filled again before it was put.
    fn written_under_a_put(&self, rank: usize) {
        for _ in 0..self.program.count {
            if rank == 0 {
                self.put();
            } else {
                self.wait_for_put();
            }
        }
        if rank == 0 {
            // SAFETY: see above.
            unsafe { result::memset_d8_async(self.memory, 1, BYTES, self.program.other) }.unwrap();
        }
    }

    /// The part is read before the puts of another rank have been waited for.
    fn read_under_a_put(&self, rank: usize, were_put: &Barrier) {
        let Program { target, other, count, .. } = *self.program;
        if rank == 0 {
            (0..count).for_each(|_| self.put());
            were_put.wait();
        } else {
            were_put.wait();
            // SAFETY: see above.
            unsafe { result::memcpy_dtod_async(target, self.memory, BYTES, other) }.unwrap();
            (0..count).for_each(|_| self.wait_for_put());
        }
    }

    /// Puts the part of rank 0 into the part of rank 1.
    fn put(&self) {
        let Program { comm, stream, .. } = *self.program;
        let (from, window, stream) = (self.memory as *const c_void, self.window, stream.cast());
        // SAFETY: see above.
        check(unsafe { sys::ncclPutSignal(from, LENGTH, ncclFloat32, 1, window, 0, 0, 0, 0, comm, stream) });
    }

    /// Waits for a put of rank 0.
    fn wait_for_put(&self) {
        let Program { comm, stream, .. } = *self.program;
        let mut signal = sys::ncclWaitSignalDesc_t { opCnt: 1, peer: 0, sigIdx: 0, ctx: 0 };
        // SAFETY: see above.
        check(unsafe { sys::ncclWaitSignal(1, &raw mut signal, comm, stream.cast()) });
    }
}

fn windows(count: usize, part: impl Fn(&Window<'_>, usize) + Sync) {
    let parts_done = Barrier::new(2);
    two_ranks(count, |rank, program| {
        let (mut memory, mut window) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: valid out-parameters, and memory that is freed after its last use.
        unsafe {
            check(sys::ncclMemAlloc(&raw mut memory, BYTES));
            check(sys::ncclCommWindowRegister(rank.comm, memory, BYTES, &raw mut window, COLL_SYMMETRIC));
            part(&Window { program, memory: memory as CUdeviceptr, window }, rank.number);
            parts_done.wait();
            rank.context.synchronize().unwrap();
            check(sys::ncclCommWindowDeregister(rank.comm, window));
            check(sys::ncclMemFree(memory));
        }
    });
}

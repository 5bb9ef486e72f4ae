//! Programs that lack a synchronisation with one of NCCL's operations, by name: rank 0 of two makes the mistake.
//!
//! What they compute is undefined; they only have to end.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use cudarc::driver::result::{self, event, stream};
use cudarc::driver::sys::{
    CUdeviceptr, CUevent, CUevent_flags, CUevent_wait_flags, CUgraphInstantiate_flags, CUstream,
    CUstreamCaptureMode,
};
use cudarc::nccl::sys::{self, ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum, ncclWindow_t};
use libnccl_cuda_consumer::{Rank, check, run_ranks};

/// The elements of a buffer.
const LENGTH: usize = 1 << 16;
const BYTES: usize = 4 * LENGTH;

fn main() {
    let name = std::env::args().nth(1).expect("the name of a program");
    match name.as_str() {
        "copy_back_before_a_collective_is_done" => planted(|program| {
            program.all_reduce(program.stream);
            program.copy_back();
        }),
        "result_used_on_another_stream" => planted(|program| {
            program.all_reduce(program.stream);
            program.copy_result(program.other);
        }),
        "free_under_a_collective" => free(),
        "send_buffer_of_a_collective_refilled" => planted(|program| {
            program.all_reduce(program.stream);
            program.refill(program.other);
        }),
        "send_buffer_of_a_message_refilled" => message(),
        "window_read_under_a_collective" => windows(|window, rank| window.read_under_a_collective(rank)),
        "window_written_under_a_put" => windows(|window, rank| window.written_under_a_put(rank)),
        "collective_on_the_default_stream" => planted(|program| {
            program.all_reduce(ptr::null_mut());
            program.copy_result(program.other);
        }),
        "event_recorded_before_the_collective" => planted(|program| {
            let event = record(program.stream);
            program.all_reduce(program.stream);
            wait(program.other, event);
            program.copy_result(program.other);
        }),
        "wait_for_an_event_of_another_stream" => planted(|program| {
            program.all_reduce(program.stream);
            let _right = record(program.stream);
            wait(program.other, record(program.third));
            program.copy_result(program.other);
        }),
        "pinned_memory_freed_under_a_collective" => pinned(),
        "buffer_of_a_graph_refilled_during_its_replay" => graph(),
        other => panic!("there is no program {other}"),
    }
    println!("ok");
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
}

// SAFETY, for all functions below: handles and memory live as `Program` says.

impl Program {
    fn new(rank: &Rank) -> Self {
        rank.context.bind_to_thread().unwrap();
        let [stream, other, third] =
            [(); 3].map(|()| stream::create(stream::StreamKind::NonBlocking).unwrap());
        // SAFETY: see above.
        let [from, to, target] = [(); 3].map(|()| unsafe { result::malloc_sync(BYTES) }.unwrap());
        Self { comm: rank.comm, stream, other, third, from, to, target }
    }

    fn all_reduce(&self, stream: CUstream) {
        self.all_reduce_between(self.from, self.to, stream);
    }

    fn all_reduce_between(&self, from: CUdeviceptr, to: CUdeviceptr, stream: CUstream) {
        let (from, to) = (from as *const c_void, to as *mut c_void);
        // SAFETY: see above.
        check(unsafe {
            sys::ncclAllReduce(from, to, LENGTH, ncclFloat32, ncclSum, self.comm, stream.cast())
        });
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

/// Runs both ranks, each with its part, until all is done.
fn two_ranks(part: impl Fn(&Rank, &Program) + Sync) {
    run_ranks(2, |rank| {
        let program = Program::new(&rank);
        part(&rank, &program);
        rank.context.synchronize().unwrap();
        rank.destroy();
    });
}

/// Rank 0 does what is given; rank 1 takes part in its collective.
fn planted(mistake: impl Fn(&Program) + Sync) {
    two_ranks(|rank, program| match rank.number {
        0 => mistake(program),
        _ => program.all_reduce(program.stream),
    });
}

/// Memory in the order of one stream is freed there, while the collective is on another.
fn free() {
    planted(|program| {
        // SAFETY: freed once, which is the mistake; the stand-in keeps the bytes until the collective is done.
        unsafe {
            let buffer = result::malloc_async(program.other, BYTES).unwrap();
            wait(program.stream, record(program.other));
            program.all_reduce_between(program.from, buffer, program.stream);
            result::free_async(buffer, program.other).unwrap();
        }
    });
}

/// The buffer of a message is filled again before the message is sent.
fn message() {
    two_ranks(|rank, program| {
        let peer = 1 - rank.number as i32;
        let (from, to) = (program.from as *const c_void, program.to as *mut c_void);
        let stream = program.stream.cast();
        if rank.number == 0 {
            // SAFETY: see above.
            check(unsafe { sys::ncclSend(from, LENGTH, ncclFloat32, peer, program.comm, stream) });
            program.refill(program.other);
        } else {
            // SAFETY: see above.
            check(unsafe { sys::ncclRecv(to, LENGTH, ncclFloat32, peer, program.comm, stream) });
        }
    });
}

/// Pinned memory is freed while a collective writes it: its other rank waits until then, as long as can be told.
fn pinned() {
    let frees = AtomicBool::new(false);
    two_ranks(|rank, program| {
        if rank.number == 0 {
            // SAFETY: freed once; the free waits, whatever is reported.
            unsafe {
                let memory = result::malloc_host(BYTES, 0).unwrap();
                program.all_reduce_between(program.from, memory as CUdeviceptr, program.stream);
                frees.store(true, SeqCst);
                result::free_host(memory).unwrap();
            }
        } else {
            while !frees.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(20));
            program.all_reduce(program.stream);
        }
    });
}

/// A graph is replayed, and the buffer that its collective reads is filled for the next launch too early.
fn graph() {
    two_ranks(|rank, program| {
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
        let Program { comm, stream, other, .. } = *self.program;
        let (from, window) = (self.memory as *const c_void, self.window);
        let mut signal = sys::ncclWaitSignalDesc_t { opCnt: 1, peer: 0, sigIdx: 0, ctx: 0 };
        // SAFETY: see above.
        unsafe {
            if rank == 0 {
                check(sys::ncclPutSignal(
                    from,
                    LENGTH,
                    ncclFloat32,
                    1,
                    window,
                    0,
                    0,
                    0,
                    0,
                    comm,
                    stream.cast(),
                ));
                result::memset_d8_async(self.memory, 1, BYTES, other).unwrap();
            } else {
                check(sys::ncclWaitSignal(1, &raw mut signal, comm, stream.cast()));
            }
        }
    }
}

fn windows(part: impl Fn(&Window<'_>, usize) + Sync) {
    two_ranks(|rank, program| {
        let (mut memory, mut window) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: valid out-parameters, and memory that is freed after its last use.
        unsafe {
            check(sys::ncclMemAlloc(&raw mut memory, BYTES));
            check(sys::ncclCommWindowRegister(rank.comm, memory, BYTES, &raw mut window, 0));
            part(&Window { program, memory: memory as CUdeviceptr, window }, rank.number);
            rank.context.synchronize().unwrap();
            check(sys::ncclCommWindowDeregister(rank.comm, window));
            check(sys::ncclMemFree(memory));
        }
    });
}

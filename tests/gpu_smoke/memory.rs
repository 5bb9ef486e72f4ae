//! Memory allocated by NCCL: plain, registered, and as windows for one-sided operations.
#![allow(unsafe_code)] // Promises that memory is idle.

use std::thread;
use std::time::Instant;

use libnccl::error::InvalidArgumentKind;
use libnccl::window::{Signal, WaitSignal, Window, WindowFlags};
use libnccl::{Communicator, Error, NcclBuffer, ReduceOp, StreamRef};

use crate::common::{COUNT, MOMENT, SHORT, assert_works, connected, scenarios};
use crate::device::Device;
use crate::rank::Rank;

scenarios! {
    OneRank:
        nccl_memory_is_reduced_and_freed,
        nccl_memory_of_another_gpu_is_an_error,
        nccl_memory_dropped_while_busy_is_kept,
        registered_buffer_is_reduced,
        window_buffer_is_reduced,
        symmetric_window_buffer_is_reduced,
        window_user_ptr_is_the_buffers_address;
    TwoRanks:
        nccl_memory_is_reduced_and_freed,
        nccl_memory_in_a_graph_is_summed_at_each_launch,
        nccl_memory_dropped_while_busy_is_kept,
        registered_buffer_is_reduced,
        window_buffer_is_reduced,
        symmetric_window_buffer_is_reduced,
        window_user_ptr_is_the_buffers_address,
        put_signal_writes_peers_window,
        put_beyond_the_peers_shorter_window_is_not_refused,
        wait_signal_makes_the_stream_wait;
}

/// Allocates a buffer with arbitrary contents.
fn alloc(rank: &Rank) -> NcclBuffer<i32> {
    rank.supported(rank.nccl.alloc(COUNT))
}

/// Asserts that an in-place sum over the ranks is right, after which the stream has no work left.
fn assert_sums(device: &Device, comm: &Communicator, buffer: &mut NcclBuffer<i32>) {
    device.fill(buffer, &[comm.rank() as i32 + 3; COUNT]);
    comm.all_reduce_in_place(&mut *buffer, ReduceOp::Sum, device.stream()).unwrap();
    let expected: i32 = (0..comm.size() as i32).map(|rank| rank + 3).sum();
    assert_eq!(device.contents(buffer), [expected; COUNT]);
}

fn nccl_memory_is_reduced_and_freed(rank: &Rank) {
    let device = Device::new();
    let comm = rank.join("communicator");
    for _ in 0..3 {
        let mut buffer = alloc(rank);
        assert_sums(&device, &comm, &mut buffer);
        // SAFETY: its only work has been waited for.
        unsafe { buffer.assume_idle() };
        buffer.free().unwrap();
    }
    comm.destroy().unwrap();
}

fn nccl_memory_of_another_gpu_is_an_error(rank: &Rank) {
    let [first, second, ..] = &*Device::all() else { rank.skip("only one GPU is visible") };
    let comm = rank.nccl.init_all(&[0]).unwrap().remove(0);
    second.make_current();
    let mut buffer = alloc(rank);
    let error = comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, first.stream()).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { kind: InvalidArgumentKind::Device, .. }), "{error:?}");
    assert_works(first, &comm);
}

fn nccl_memory_in_a_graph_is_summed_at_each_launch(rank: &Rank) {
    let (device, comm) = connected(rank);
    let mut buffer = alloc(rank);
    device.fill(&mut buffer, &[3; COUNT]);
    let graph =
        device.capture(|| comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, device.stream()).unwrap());
    for launches in 1..=2 {
        graph.launch().unwrap();
        assert_eq!(device.contents(&buffer), [3 * 2_i32.pow(launches); COUNT]);
    }
    // Which leaks it.
    drop(buffer);
    graph.launch().unwrap();
    assert!(device.idle_within(SHORT));
    rank.barrier("the end of the graph");
    drop(graph);
    comm.destroy().unwrap();
}

fn nccl_memory_dropped_while_busy_is_kept(rank: &Rank) {
    let (device, comm) = connected(rank);
    let start = || {
        let mut buffer = alloc(rank);
        comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, device.stream()).unwrap();
        buffer
    };
    // Rank 0's work waits for rank 1's.
    if rank.number == 1 {
        thread::sleep(MOMENT);
    }
    let error = start().free().unwrap_err();
    assert!(matches!(error, Error::InvalidUsage { .. }), "{error:?}");
    drop(start());
    assert!(device.idle_within(SHORT));
    assert_works(&device, &comm);
    comm.destroy().unwrap();
}

fn registered_buffer_is_reduced(rank: &Rank) {
    let device = Device::new();
    let comm = rank.join("communicator");
    let mut buffer = alloc(rank);
    let registration = rank.supported(comm.register(&buffer));
    for _ in 0..3 {
        assert_sums(&device, &comm, &mut buffer);
    }
    rank.barrier("all work is done");
    // SAFETY: its only work has been waited for, on all ranks.
    unsafe { buffer.assume_idle() };
    registration.deregister().unwrap();
    buffer.free().unwrap();
    assert_works(&device, &comm);
    comm.destroy().unwrap();
}

/// The arguments of the work in [`with_window`].
struct Views<'a> {
    device: &'a Device,
    comm: &'a Communicator,
    buffer: &'a mut NcclBuffer<i32>,
    window: &'a Window<i32>,
}

/// Registers a window, works with it, and deregisters it. Skipped if NCCL registers no window here, which is no error.
fn with_window(rank: &Rank, flags: WindowFlags, work: impl FnOnce(Views<'_>)) {
    let device = Device::new();
    let comm = rank.join("communicator");
    let mut buffer = alloc(rank);
    // SAFETY: all ranks register as many elements.
    let window = rank.supported(unsafe { comm.register_window(&mut buffer, flags) });
    assert_eq!(window.len(), COUNT);
    assert_sums(&device, &comm, &mut buffer);
    if !window.is_active() {
        rank.barrier("all sums are right");
        rank.skip("ncclCommWindowRegister succeeded and made no window; an all_reduce was right");
    }
    work(Views { device: &device, comm: &comm, buffer: &mut buffer, window: &window });
    end_window(rank, &device, &comm, buffer, window);
    comm.destroy().unwrap();
}

/// Ends a window and its buffer once no rank works with them, after which the communicator still works.
fn end_window(
    rank: &Rank,
    device: &Device,
    comm: &Communicator,
    mut buffer: NcclBuffer<i32>,
    window: Window<i32>,
) {
    assert!(device.idle_within(SHORT));
    rank.barrier("all work is done");
    // SAFETY: all work with it has been waited for, on all ranks.
    unsafe { buffer.assume_idle() };
    window.deregister().unwrap();
    buffer.free().unwrap();
    assert_works(device, comm);
}

fn window_buffer_is_reduced(rank: &Rank) {
    with_window(rank, WindowFlags::DEFAULT, |views| assert_sums(views.device, views.comm, views.buffer));
}

fn symmetric_window_buffer_is_reduced(rank: &Rank) {
    with_window(rank, WindowFlags::COLL_SYMMETRIC, |views| {
        assert_sums(views.device, views.comm, views.buffer);
    });
}

fn window_user_ptr_is_the_buffers_address(rank: &Rank) {
    with_window(rank, WindowFlags::COLL_SYMMETRIC, |views| {
        assert_eq!(rank.supported(views.window.user_ptr()), views.buffer.as_mut_ptr());
    });
}

/// Works with a window. Skipped if NCCL says that the host cannot start one-sided operations.
fn one_sided(rank: &Rank, work: impl FnOnce(Views<'_>, StreamRef<'_>, usize)) {
    with_window(rank, WindowFlags::COLL_SYMMETRIC, |views| {
        let properties = rank.supported(views.comm.properties());
        if properties.host_rma == Some(false) {
            rank.skip("ncclCommQueryProperties says hostRmaSupport = false");
        }
        let device = views.device;
        work(views, device.stream(), 1 - rank.number);
    });
}

fn put_signal_writes_peers_window(rank: &Rank) {
    const HALF: usize = COUNT / 2;
    one_sided(rank, |Views { device, comm, buffer, window }, stream, peer| {
        let (own, theirs) = (rank.number as i32 + 1, peer as i32 + 1);
        device.fill(buffer, &[own; COUNT]);
        rank.barrier("all windows are filled");
        let first_half = buffer.get(..HALF).expect("it is longer");
        rank.supported(comm.put_signal(first_half, peer, window.at(HALF), Signal::default(), stream));
        let signals = [WaitSignal { count: 1, peer: peer as u32, signal: Signal::default() }];
        rank.supported(comm.wait_signal(&signals, stream));
        assert_eq!(device.contents(buffer), [[own; HALF], [theirs; HALF]].concat());
    });
}

/// The reason why [`Communicator::register_window`] is unsafe: NCCL compares the lengths neither when the window is
/// registered nor in a put. Nothing else is overwritten, as ncclMemAlloc rounds up to the driver's granularity, which is
/// 2 MiB.
fn put_beyond_the_peers_shorter_window_is_not_refused(rank: &Rank) {
    const LENGTHS: [usize; 2] = [COUNT, 2 * COUNT];
    const _: () = assert!(LENGTHS[1] * size_of::<i32>() <= 2 << 20);
    let device = Device::new();
    let comm = rank.join("communicator");
    let mut buffer = rank.supported(rank.nccl.alloc::<i32>(LENGTHS[rank.number]));
    // SAFETY: rank 1's put stays in the memory that is allocated for rank 0's part.
    let window = rank.supported(unsafe { comm.register_window(&mut buffer, WindowFlags::COLL_SYMMETRIC) });
    if !window.is_active() || rank.supported(comm.properties()).host_rma == Some(false) {
        rank.skip("NCCL makes no window here, or the host cannot start one-sided operations");
    }
    if rank.number == 1 {
        let first_half = buffer.get(..COUNT).expect("it is longer");
        comm.put_signal(first_half, 0, window.at(COUNT), Signal::default(), device.stream()).unwrap();
    } else {
        let signals = [WaitSignal { count: 1, peer: 1, signal: Signal::default() }];
        comm.wait_signal(&signals, device.stream()).unwrap();
    }
    end_window(rank, &device, &comm, buffer, window);
    comm.destroy().unwrap();
}

/// The stream waits, not the call.
fn wait_signal_makes_the_stream_wait(rank: &Rank) {
    one_sided(rank, |Views { device, comm, .. }, stream, peer| {
        rank.barrier("start");
        if rank.number == 1 {
            thread::sleep(MOMENT);
            return rank.supported(comm.signal(peer, Signal::default(), stream));
        }
        let start = Instant::now();
        let signals = [WaitSignal { count: 1, peer: peer as u32, signal: Signal::default() }];
        rank.supported(comm.wait_signal(&signals, stream));
        assert!(device.idle_within(SHORT), "the signal has not arrived");
        let waited = start.elapsed();
        assert!(waited >= MOMENT * 9 / 10, "{waited:?}");
    });
}

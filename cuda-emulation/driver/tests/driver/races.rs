//! Races: programs with one, which must be reported with both operations, and programs without.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Barrier;

use cuda_common::{Access, AccessKind};
use cudarc::driver::DriverError;
use cudarc::driver::result::{self, event, stream, stream::StreamKind};
use cudarc::driver::sys::{self, CUdeviceptr, CUstream};

use crate::extension;
use crate::work::{LENGTH, call, copy, destroy, enter, free, memory, nonblocking, record, try_fill, wait};

fn make_races_without_an_error() {
    races_of_many_streams_are_reported_once_and_counted();
    free_under_work_is_reported();
    result::ctx::synchronize().expect("no error");
}

crate::tests! {
    copy_back_before_the_work_is_done_is_reported ["race in allocation", "cuMemsetD8Async on stream", "cuMemcpyDtoH_v2 on stream"]
    two_streams_without_an_event_are_reported ["race in allocation", "cuMemsetD8Async on stream", "cuMemcpyDtoDAsync_v2 on stream", "nothing orders these calls [race]\n"]
    free_under_work_is_reported ["race in allocation", "cuMemsetD8Async on stream", "cuMemFreeAsync on stream", "nothing orders these calls [free-under-work]\n"]
    waiting_free_of_pool_memory_under_work_is_reported ["race in allocation", "cuMemsetD8Async on stream", "cuMemFree_v2 by the host", "[free-under-work]"]
    default_stream_against_a_nonblocking_stream_is_reported ["race in allocation", "cuMemsetD8_v2 on stream", "cuMemcpyDtoDAsync_v2"]
    event_recorded_too_early_is_reported ["race in allocation", "cuMemsetD8Async on stream", "cuMemcpyDtoDAsync_v2"]
    pinned_memory_freed_under_a_copy_is_reported ["race in allocation", "cuMemcpyDtoHAsync_v2 on stream", "cuMemFreeHost by the host"]
    pinned_memory_refilled_on_another_stream_is_reported ["race in allocation", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"]
    allocation_used_on_another_stream_is_reported ["race in allocation", "cuMemAllocAsync on stream", "cuMemsetD8Async"]
    overlapping_rows_are_reported ["race in allocation", "cuMemsetD2D8Async", "rows of 8"]
    races_of_many_streams_are_reported_once_and_counted [
        "race in allocation",
        "cuMemsetD8Async on stream",
        "libnccl: 98 more operations were in races of cuMemsetD8Async and cuMemsetD8Async in device memory, as reported above [race]\n",
    ]
    races_of_a_loop_are_reported_once_and_counted [
        "race in allocation",
        "cuMemsetD8_v2 on stream", "ncclSend(count ",
        " more operations were in races of cuMemsetD8_v2 and ncclRecv + ncclSend in device memory, as reported above [race]\n",
    ]
    operation_of_a_peer_without_an_event_is_reported ["race in allocation", "cuMemsetD8Async on stream", "send of rank 0 on stream"]
    interleaved_columns_are_not_reported
    ordered_work_is_not_reported
    streams_ordered_by_peers_are_not_reported
    race_is_a_sticky_error_if_enabled ["race in allocation"] { LIBNCCL_CPU_RACES = "error" }
    race_is_not_reported_if_disabled = two_streams_without_an_event_are_reported { LIBNCCL_CPU_RACES = "off" }
    ignored_race_is_neither_reported_nor_an_error = make_races_without_an_error {
        LIBNCCL_CPU_IGNORE = "free-under-work, race", LIBNCCL_CPU_RACES = "error"
    }
    race_next_to_an_ignored_one_is_reported = make_races_without_an_error [
        "race in allocation", " more operations were in races of cuMemsetD8Async and cuMemsetD8Async"
    ] { LIBNCCL_CPU_IGNORE = "free-under-work" }
    findings_are_recorded_in_the_given_file = make_races_without_an_error [
        "{\"count\":1,\"finding\":\"race\",\"process\":",
        ",\"text\":\"race in allocation 1, 4096 bytes of device 0: nothing orders these calls\\n    call ",
        "{\"count\":98,\"finding\":\"race\",\"process\":",
        "{\"count\":1,\"finding\":\"free-under-work\",\"process\":",
        "{\"count\":1,\"finding\":\"leaked-stream\",\"process\":",
    ] { LIBNCCL_CPU_REPORT = "/dev/stderr" }
    race_has_stack_traces_if_enabled = two_streams_without_an_event_are_reported [
        "writes bytes 0 to 4096\n        cuMemsetD8Async\n        cudarc::driver::",
        "reads bytes 0 to 4096\n        cuMemcpyDtoDAsync_v2\n        cudarc::driver::",
        "        driver::races::fill",
        "        driver::work::copy",
        "        driver::races::two_streams_without_an_event_are_reported",
        "        driver::main",
    ] { LIBNCCL_CPU_STACKS = "1" }
    race_is_recorded_with_stack_traces = free_under_work_is_reported [
        ",\"stacks\":[[\"cuMemsetD8Async\",\"", ",\"driver::races::free_under_work_is_reported"
    ] { LIBNCCL_CPU_STACKS = "1", LIBNCCL_CPU_REPORT = "/dev/stderr" }
}

/// Two nonblocking streams and two buffers of a device.
struct Bench {
    streams: [CUstream; 2],
    buffers: [CUdeviceptr; 2],
}

fn bench() -> Bench {
    enter(0);
    Bench { streams: [(); 2].map(|()| nonblocking()), buffers: [(); 2].map(|()| memory()) }
}

// SAFETY, for all functions below: handles and memory live until the process ends, unless the test is about that.

fn fill(buffer: CUdeviceptr, stream: CUstream) {
    try_fill(buffer, 1, stream).expect("a memset");
}

/// Allocates memory in stream order.
fn allocate(stream: CUstream) -> CUdeviceptr {
    // SAFETY: see above.
    unsafe { result::malloc_async(stream, LENGTH) }.expect("memory")
}

fn copy_back_before_the_work_is_done_is_reported() {
    let Bench { streams: [one, _], buffers: [buffer, _] } = bench();
    fill(buffer, one);
    // SAFETY: see above.
    unsafe { result::memcpy_dtoh_sync(&mut [0_u8; LENGTH], buffer) }.expect("a copy");
}

fn two_streams_without_an_event_are_reported() {
    let Bench { streams: [one, two], buffers: [from, to] } = bench();
    fill(from, one);
    copy(to, from, two);
}

fn free_under_work_is_reported() {
    let Bench { streams: [one, two], .. } = bench();
    let buffer = allocate(one);
    wait(two, record(one));
    fill(buffer, two);
    // SAFETY: see above.
    unsafe { result::free_async(buffer, one) }.expect("a free");
}

fn waiting_free_of_pool_memory_under_work_is_reported() {
    let Bench { streams: [one, _], .. } = bench();
    let buffer = allocate(one);
    fill(buffer, one);
    free(buffer);
}

fn default_stream_against_a_nonblocking_stream_is_reported() {
    let Bench { streams: [one, _], buffers: [from, to] } = bench();
    // SAFETY: see above.
    unsafe { result::memset_d8_sync(from, 1, LENGTH) }.expect("a memset");
    copy(to, from, one);
}

fn event_recorded_too_early_is_reported() {
    let Bench { streams: [one, two], buffers: [from, to] } = bench();
    let event = record(one);
    fill(from, one);
    wait(two, event);
    copy(to, from, two);
}

fn races_of_many_streams_are_reported_once_and_counted() {
    let Bench { buffers: [buffer, _], .. } = bench();
    for _ in 0..100 {
        let fresh = nonblocking();
        fill(buffer, fresh);
        destroy(fresh);
    }
}

/// Uses the labels of NCCL's operations, for groups of one operation and of several.
fn races_of_a_loop_are_reported_once_and_counted() {
    unsafe extern "C" fn nothing(_: *mut c_void) {}
    let Bench { streams: [one, _], buffers: [buffer, _] } = bench();
    // SAFETY: see above.
    unsafe { result::memset_d8_sync(buffer, 1, LENGTH) }.expect("a memset");
    // All operations race with the memset only if it begins before them. This orders nothing.
    let last = extension::resolve(buffer, LENGTH)
        .expect("device memory")
        .alias
        .cast::<u8>()
        .wrapping_add(LENGTH - 1);
    // SAFETY: see above; another thread writes the byte.
    while unsafe { last.read_volatile() } != 1 {
        std::thread::yield_now();
    }
    for number in 0..400 {
        let rank = number % 2;
        let call = |name| format!("{name}(count {number}, ncclFloat32, peer {})", 1 - rank);
        let more = if number < 100 { String::new() } else { format!(" + {number} more") };
        let numbers = format!("calls {number} to {}", number + 1);
        let label = format!("{} + {}{more}, rank {rank} of 2, {numbers}", call("ncclSend"), call("ncclRecv"));
        let access = extension::writes(buffer, LENGTH);
        let label = CString::new(label).expect("no null character");
        extension::enqueue(one, access, &label, [Some(nothing), None], ptr::null_mut())
            .expect("an operation");
    }
}

fn pinned(length: usize) -> *mut u8 {
    // SAFETY: see above.
    unsafe { result::malloc_host(length, 0) }.expect("pinned memory").cast()
}

fn slice<'a>(memory: *mut u8) -> &'a mut [u8] {
    // SAFETY: it is as long; only the driver uses it while this does not.
    unsafe { std::slice::from_raw_parts_mut(memory, LENGTH) }
}

fn pinned_memory_freed_under_a_copy_is_reported() {
    let Bench { streams: [one, _], buffers: [buffer, _] } = bench();
    let memory = pinned(LENGTH);
    // SAFETY: the free waits, even if a race is reported.
    unsafe {
        result::memcpy_dtoh_async(slice(memory), buffer, one).expect("a copy");
        result::free_host(memory.cast()).expect("a free");
    }
}

fn pinned_memory_refilled_on_another_stream_is_reported() {
    let Bench { streams: [one, two], buffers: [from, to] } = bench();
    let memory = pinned(LENGTH);
    // SAFETY: see above.
    unsafe {
        result::memcpy_dtoh_async(slice(memory), from, one).expect("a copy");
        result::memcpy_htod_async(to, slice(memory), two).expect("a copy");
    }
}

fn allocation_used_on_another_stream_is_reported() {
    let Bench { streams: [one, two], .. } = bench();
    let buffer = allocate(one);
    fill(buffer, two);
}

/// Fills every second column of 8 bytes.
fn fill_columns(buffer: CUdeviceptr, stream: CUstream) {
    // SAFETY: see above.
    let filled = unsafe { sys::cuMemsetD2D8Async(buffer, 16, 1, 8, LENGTH / 16, stream) };
    filled.result().expect("a memset");
}

fn overlapping_rows_are_reported() {
    let Bench { streams: [one, two], buffers: [buffer, _] } = bench();
    fill_columns(buffer, one);
    fill_columns(buffer + 7, two);
}

fn interleaved_columns_are_not_reported() {
    let Bench { streams: [one, two], buffers: [buffer, _] } = bench();
    fill_columns(buffer, one);
    fill_columns(buffer + 8, two);
}

fn race_is_a_sticky_error_if_enabled() {
    let failed = Err(DriverError(sys::CUresult::CUDA_ERROR_ASSERT));
    two_streams_without_an_event_are_reported();
    assert_eq!(result::ctx::synchronize(), failed);
    assert_eq!(stream::create(StreamKind::NonBlocking).map(|_| ()), failed);
}

/// In ways that random programs do not use.
fn ordered_work_is_not_reported() {
    let Bench { streams: [one, two], buffers: [from, to] } = bench();
    let (three, event) = (nonblocking(), record(one));
    let end_all = || result::ctx::synchronize().expect("the end of everything");
    // An event orders the work up to its last record, through any number of streams.
    fill(from, one);
    // SAFETY: see above.
    unsafe { event::record(event, one) }.expect("a record");
    wait(two, event);
    wait(three, record(two));
    copy(to, from, three);
    end_all();
    // The query of a stream whose work is done.
    fill(from, one);
    // SAFETY: see above.
    while unsafe { sys::cuStreamQuery(one) }.result().is_err() {}
    copy(to, from, two);
    end_all();
    // A function of the program that signals another thread.
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    fill(from, one);
    call(one, move || sender.send(()).expect("a receiver"));
    receiver.recv().expect("a message");
    copy(to, from, two);
    end_all();
    // The default stream, and each thread's, with blocking streams.
    let [blocking, destroyed] = [(); 2].map(|()| stream::create(StreamKind::Default).expect("a stream"));
    fill(from, blocking);
    fill(from, ptr::null_mut());
    copy(to, from, destroyed);
    destroy(destroyed);
    fill(to, ptr::null_mut());
    fill(to, ptr::without_provenance_mut(2));
    fill(to, ptr::null_mut());
    end_all();
    // A free in stream order, and one that waits.
    let buffer = allocate(one);
    wait(two, record(one));
    fill(buffer, two);
    wait(one, record(two));
    // SAFETY: it is freed once, after its use.
    unsafe { result::free_async(buffer, one) }.expect("a free");
    fill(from, one);
    fill(to, two);
    free(from);
    free(to);
}

unsafe extern "C" fn meet(message: *mut c_void) {
    // SAFETY: the barrier is leaked.
    unsafe { &*message.cast::<Barrier>() }.wait();
}

/// Enqueues a send or a receive. Either waits for the other.
fn enqueue_message(stream: CUstream, buffer: CUdeviceptr, is_sent: bool, message: &'static Barrier) {
    let (kind, label) = if is_sent {
        (AccessKind::Read, c"send of rank 0")
    } else {
        (AccessKind::Write, c"receive of rank 1")
    };
    let access = Access { address: buffer, length: LENGTH, kind };
    let message = (&raw const *message).cast_mut().cast();
    extension::enqueue(stream, access, label, [Some(meet), None], message).expect("an operation");
}

fn operation_of_a_peer_without_an_event_is_reported() {
    let Bench { streams: [one, two], buffers: [buffer, other] } = bench();
    let message = Box::leak(Box::new(Barrier::new(2)));
    fill(buffer, one);
    enqueue_message(two, buffer, true, message);
    enqueue_message(one, other, false, message);
    result::ctx::synchronize().expect("the end");
}

fn streams_ordered_by_peers_are_not_reported() {
    let Bench { streams: [one, two], buffers: [shared, buffer] } = bench();
    let other = memory();
    for receive_first in [false, true] {
        let message = Box::leak(Box::new(Barrier::new(2)));
        let write_and_send = || {
            fill(shared, one);
            enqueue_message(one, buffer, true, message);
        };
        let receive_and_read = || {
            enqueue_message(two, other, false, message);
            fill(shared, two);
        };
        if receive_first {
            receive_and_read();
            write_and_send();
        } else {
            write_and_send();
            receive_and_read();
        }
        result::ctx::synchronize().expect("the end");
    }
}

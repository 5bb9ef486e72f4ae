//! Streams, events and functions of the program.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use cudarc::driver::{CudaContext, result, sys};

use crate::work::{self, call, destroy, nonblocking};

crate::tests! {
    events_are_complete_after_their_work_and_measure_time
    host_functions_run_in_the_order_of_their_stream
    host_function_must_not_wait
    default_stream_waits_for_blocking_streams
    destroyed_stream_completes_its_work
    context_retained_during_its_release_is_kept
}

/// Makes a stream wait until the returned function is called.
fn close(stream: sys::CUstream) -> impl FnOnce() {
    let (release, wait) = mpsc::sync_channel(1);
    call(stream, move || wait.recv_timeout(Duration::from_secs(20)).unwrap_or_default());
    move || release.send(()).expect("a receiver")
}

fn events_are_complete_after_their_work_and_measure_time() {
    let (context, foreign) = (CudaContext::new(0).expect("a device"), CudaContext::new(1).expect("a device"));
    let stream = context.new_stream().expect("a stream");
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let never = context.new_event(None).expect("an event");
    assert_eq!(never.try_is_complete(), Ok(true), "it was never recorded");
    never.synchronize().expect("no wait");
    stream.wait(&never).expect("no wait");
    let start = stream.record_event(timed).expect("an event");
    start.synchronize().expect("the start");
    std::thread::sleep(Duration::from_millis(20));
    let end = stream.record_event(timed).expect("an event");
    let elapsed = start.elapsed_ms(&end).expect("a time");
    assert!((20.0..5000.0).contains(&elapsed), "{elapsed} ms");
    let untimed = stream.record_event(None).expect("an event");
    assert!(start.elapsed_ms(&untimed).is_err());
    // The stream of another device may wait for an event, but not record it.
    let stream = foreign.new_stream().expect("a stream");
    // SAFETY: both are alive.
    let recorded = unsafe { result::event::record(never.cu_event(), stream.cu_stream()) };
    assert_eq!(recorded, Err(result::DriverError(sys::CUresult::CUDA_ERROR_INVALID_HANDLE)));
    stream.wait(&end).expect("waiting is allowed");
}

fn host_functions_run_in_the_order_of_their_stream() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let stream = CudaContext::new(0).expect("device 0").new_stream().expect("a stream");
    for number in 0..200 {
        call(stream.cu_stream(), move || assert_eq!(NEXT.fetch_add(1, Ordering::SeqCst), number));
    }
    stream.synchronize().expect("the end");
    assert_eq!(NEXT.load(Ordering::SeqCst), 200);
}

fn host_function_must_not_wait() {
    const PERMITTED: sys::CUresult = sys::CUresult::CUDA_SUCCESS;
    const REFUSED: sys::CUresult = sys::CUresult::CUDA_ERROR_NOT_PERMITTED;
    let owner = work::context(0);
    let new_stream = owner.new_stream().expect("a stream");
    let (context, stream, event) = (owner.cu_ctx(), new_stream.cu_stream(), work::event());
    let memory = work::allocate(1 << 20);
    // SAFETY: freed below.
    let pinned = unsafe { result::malloc_host(8, 0) }.expect("pinned memory");
    let (sender, receiver) = mpsc::channel();
    call(stream, move || {
        let large = vec![0_u8; 1 << 20];
        let (mut other, mut host, from) = (0, 0_u64, large.as_ptr().cast());
        // SAFETY: the handles and the memory are valid; the waits are under test.
        let results = unsafe {
            [
                ("cuCtxSetCurrent", sys::cuCtxSetCurrent(context), PERMITTED),
                ("cuMemsetD8Async", sys::cuMemsetD8Async(memory, 1, 8, stream), PERMITTED),
                ("cuEventRecord", sys::cuEventRecord(event, stream), PERMITTED),
                ("cuStreamQuery", sys::cuStreamQuery(stream), REFUSED),
                ("cuCtxSynchronize", sys::cuCtxSynchronize(), REFUSED),
                ("cuStreamSynchronize", sys::cuStreamSynchronize(stream), REFUSED),
                ("cuEventSynchronize", sys::cuEventSynchronize(event), REFUSED),
                ("cuMemAlloc", sys::cuMemAlloc_v2(&raw mut other, 8), REFUSED),
                ("cuMemFree", sys::cuMemFree_v2(memory), REFUSED),
                ("cuMemFreeHost", sys::cuMemFreeHost(pinned), REFUSED),
                ("cuMemcpyDtoH", sys::cuMemcpyDtoH_v2((&raw mut host).cast(), memory, 8), REFUSED),
                ("cuMemcpyHtoDAsync", sys::cuMemcpyHtoDAsync_v2(memory, from, large.len(), stream), REFUSED),
                ("cuMemsetD8", sys::cuMemsetD8_v2(pinned as u64, 1, 8), REFUSED),
                ("cuMemcpyPeer", sys::cuMemcpyPeer(memory, context, memory, context, 8), REFUSED),
                ("cuDevicePrimaryCtxRelease", sys::cuDevicePrimaryCtxRelease_v2(0), REFUSED),
                ("cuDevicePrimaryCtxReset", sys::cuDevicePrimaryCtxReset_v2(0), REFUSED),
            ]
        };
        sender.send(results).expect("a receiver");
    });
    new_stream.synchronize().expect("the end");
    for (function, code, expected) in receiver.recv().expect("the results") {
        assert_eq!(code, expected, "{function}");
    }
    // Other threads may wait.
    work::free(memory);
    // SAFETY: freed once.
    unsafe { result::free_host(pinned) }.expect("a free");
}

fn default_stream_waits_for_blocking_streams() {
    let context = work::context(0);
    let blocking = result::stream::create(result::stream::StreamKind::Default).expect("a stream");
    let open = close(blocking);
    let after = context.default_stream().record_event(None).expect("an event");
    assert_eq!(after.try_is_complete(), Ok(false), "the default stream waits");
    open();
    context.synchronize().expect("the end");
    assert_eq!(after.try_is_complete(), Ok(true));
    destroy(blocking);
}

fn destroyed_stream_completes_its_work() {
    let context = CudaContext::new(0).expect("device 0");
    let stream = context.new_stream().expect("a stream");
    let (open, event) = (close(stream.cu_stream()), stream.record_event(None).expect("an event"));
    drop(stream);
    assert_eq!(event.try_is_complete(), Ok(false));
    open();
    event.synchronize().expect("the end of the work");
}

fn context_retained_during_its_release_is_kept() {
    result::init().expect("the driver");
    let device = result::device::get(0).expect("device 0");
    // SAFETY: device 0 is there; each retain below has its release.
    let retain = || unsafe { result::primary_ctx::retain(device) }.expect("a context");
    let context = retain();
    // SAFETY: retained above.
    unsafe { result::ctx::set_current(context) }.expect("the context");
    let stream = nonblocking();
    let open = close(stream);
    std::thread::scope(|scope| {
        // It waits for the work.
        // SAFETY: the first retain.
        let release = scope.spawn(|| unsafe { result::primary_ctx::release(0) });
        std::thread::sleep(Duration::from_millis(100));
        retain();
        open();
        release.join().expect("no panic").expect("a context that was retained");
    });
    result::ctx::synchronize().expect("a context that is retained");
    // SAFETY: the second one.
    unsafe { result::primary_ctx::release(device) }.expect("a context that was retained");
}

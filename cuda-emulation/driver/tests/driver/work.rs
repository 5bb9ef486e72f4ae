//! Work on streams, for tests that order it themselves. Handles and memory live until the process ends, unless a test is about that.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use cudarc::driver::result::{self, DriverError, event, stream};
use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUresult, CUstream};

pub(crate) const LENGTH: usize = 4096;

pub(crate) fn error(code: CUresult) -> DriverError {
    DriverError(code)
}

/// Makes a device current.
pub(crate) fn context(device: usize) -> Arc<CudaContext> {
    let context = CudaContext::new(device).expect("a device");
    context.bind_to_thread().expect("a current context");
    context
}

/// Makes a device current, for the rest of the process.
pub(crate) fn enter(device: usize) {
    std::mem::forget(context(device));
}

pub(crate) fn memory() -> CUdeviceptr {
    allocate(LENGTH)
}

pub(crate) fn allocate(length: usize) -> CUdeviceptr {
    // SAFETY: see above.
    unsafe { result::malloc_sync(length) }.expect("memory")
}

pub(crate) fn free(address: CUdeviceptr) {
    // SAFETY: the tests free it once.
    unsafe { result::free_sync(address) }.expect("a free");
}

pub(crate) fn nonblocking() -> CUstream {
    stream::create(stream::StreamKind::NonBlocking).expect("a stream")
}

pub(crate) fn try_fill(buffer: CUdeviceptr, value: u8, stream: CUstream) -> Result<(), DriverError> {
    // SAFETY: see above.
    unsafe { result::memset_d8_async(buffer, value, LENGTH, stream) }
}

pub(crate) fn copy(to: CUdeviceptr, from: CUdeviceptr, stream: CUstream) {
    // SAFETY: see above.
    unsafe { result::memcpy_dtod_async(to, from, LENGTH, stream) }.expect("a copy");
}

pub(crate) fn event() -> CUevent {
    event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).expect("an event")
}

pub(crate) fn record(stream: CUstream) -> CUevent {
    let event = event();
    // SAFETY: see above.
    unsafe { event::record(event, stream) }.expect("a record");
    event
}

pub(crate) fn try_wait(stream: CUstream, event: CUevent) -> Result<(), DriverError> {
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: see above.
    unsafe { stream::wait_event(stream, event, flags) }
}

pub(crate) fn wait(stream: CUstream, event: CUevent) {
    try_wait(stream, event).expect("a wait");
}

pub(crate) fn destroy(stream: CUstream) {
    // SAFETY: the tests destroy it once.
    unsafe { stream::destroy(stream) }.expect("an end");
}

/// Enqueues a host function, which any thread may call, and which is called for each launch if it is captured.
pub(crate) fn call(stream: CUstream, function: impl Fn() + 'static) {
    unsafe extern "C" fn run(function: *mut c_void) {
        // SAFETY: the box below, which is never freed.
        let function = unsafe { &*function.cast::<Box<dyn Fn()>>() };
        function();
    }
    let function: Box<Box<dyn Fn()>> = Box::new(Box::new(function));
    // SAFETY: each test passes a function that any thread may call.
    unsafe { stream::launch_host_function(stream, run, Box::into_raw(function).cast()) }.expect("a function");
}

/// Requires a counter to reach a number, and not exceed it.
pub(crate) fn require(counter: &AtomicUsize, expected: usize) {
    let start = Instant::now();
    while counter.load(Ordering::SeqCst) < expected && start.elapsed().as_secs() < 10 {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(5));
    assert_eq!(counter.load(Ordering::SeqCst), expected);
}

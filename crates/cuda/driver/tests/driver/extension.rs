//! The functions beyond CUDA's, from the library that cudarc loaded.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::result::{self, stream, stream::StreamKind};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream, culib};
use cudarc::driver::{CudaContext, DriverError};

use crate::process::Test;
use crate::virtual_memory;

crate::tests! {
    version_is_four
    alias_of_device_memory_has_its_bytes
    range_beyond_an_allocation_is_not_resolved
    memory_of_a_file_is_device_memory
    memory_stays_if_a_check_refuses_its_free
    operation_runs_once_even_if_its_stream_is_destroyed
    data_is_released_once_after_the_operation_and_not_if_it_is_refused
    failure_stays_with_the_context_of_the_operation_until_it_is_taken_back
    devices_are_described_before_cuda_is_initialised
}

/// Memory that an operation uses.
#[repr(C)]
pub(crate) struct Access {
    pub(crate) address: CUdeviceptr,
    pub(crate) length: usize,
    pub(crate) writes: c_int,
}

#[repr(C)]
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    kind: i32,
    device: i32,
    alias: *mut c_void,
    id: u64,
}

/// A function that gets the data of an operation.
pub(crate) type Run = unsafe extern "C" fn(*mut c_void);
type Enqueue = unsafe extern "C" fn(
    CUstream,
    *const Access,
    usize,
    *const c_char,
    Run,
    Option<Run>,
    *mut c_void,
) -> CUresult;
type Resolve = unsafe extern "C" fn(CUdeviceptr, usize, *mut Memory) -> CUresult;
type Shared = unsafe extern "C" fn(c_int, usize, *mut CUdeviceptr) -> CUresult;
/// A function that is called before memory is freed.
type FreeCheck = unsafe extern "C" fn(*const c_char, CUdeviceptr, usize) -> c_int;
type OnFree = unsafe extern "C" fn(Option<FreeCheck>) -> CUresult;
type Fail = unsafe extern "C" fn(u64, CUresult, *const c_char) -> CUresult;
type Failure = unsafe extern "C" fn(CUstream, *mut c_char, usize) -> CUresult;
type Recover = unsafe extern "C" fn(u64) -> CUresult;
type Version = unsafe extern "C" fn() -> u32;
type Describe = unsafe extern "C" fn(c_int, *mut Device) -> CUresult;

/// A physical device.
#[repr(C)]
pub(crate) struct Device {
    name: [u8; 64],
    pub(crate) uuid: [c_char; 16],
    bus: u32,
    capability: [c_int; 2],
    total: u64,
    pub(crate) free: u64,
}

/// Describes a physical device.
pub(crate) fn describe(index: c_int) -> Result<Device, DriverError> {
    let mut device = Device { name: [0; 64], uuid: [0; 16], bus: 0, capability: [0; 2], total: 0, free: 0 };
    // SAFETY: a variable.
    unsafe { function::<Describe>(c"libnccl_cuda_describe")(index, &raw mut device) }
        .result()
        .map(|()| device)
}

/// A function that takes no arguments, or leaves them alone.
pub(crate) type Nullary = extern "C" fn() -> CUresult;
type Launched = extern "C" fn(CUstream) -> CUresult;

/// Waits for a stream after a call of NCCL, if launches block.
pub(crate) fn launched(stream: CUstream) -> Result<(), DriverError> {
    function::<Launched>(c"libnccl_cuda_launched")(stream).result()
}

pub(crate) fn function<F: Copy>(name: &CStr) -> F {
    // SAFETY: the callers name the function's type.
    unsafe { *culib().get::<F>(name.to_bytes_with_nul()).expect("the function") }
}

/// Enqueues an operation with one access.
pub(crate) fn enqueue(
    stream: CUstream,
    access: Access,
    label: &CStr,
    run: Run,
    data: *mut c_void,
) -> Result<(), DriverError> {
    enqueue_with_release(stream, access, label, run, None, data)
}

/// Enqueues an operation with one access, after which its data is released.
pub(crate) fn enqueue_with_release(
    stream: CUstream,
    access: Access,
    label: &CStr,
    run: Run,
    release: Option<Run>,
    data: *mut c_void,
) -> Result<(), DriverError> {
    let enqueue = function::<Enqueue>(c"libnccl_cuda_enqueue");
    // SAFETY: the access is a variable; the callers keep the data.
    unsafe { enqueue(stream, &raw const access, 1, label.as_ptr(), run, release, data) }.result()
}

/// Returns whether the driver takes calls, of which this one has no valid handle. It is a deadlock if it does not.
pub(crate) fn may_call_cuda() -> bool {
    // SAFETY: null is no event, which is an error.
    let code = unsafe { cudarc::driver::sys::cuEventQuery(ptr::null_mut()) };
    code == CUresult::CUDA_ERROR_INVALID_HANDLE
}

fn resolve(address: CUdeviceptr, length: usize) -> Result<Memory, DriverError> {
    let mut memory = Memory { kind: -1, device: -1, alias: ptr::null_mut(), id: 0 };
    let resolve = function::<Resolve>(c"libnccl_cuda_resolve");
    // SAFETY: the memory is a variable.
    unsafe { resolve(address, length, &raw mut memory) }.result().map(|()| memory)
}

/// Makes a device current, for the rest of the process.
fn device(ordinal: usize) {
    let context = CudaContext::new(ordinal).expect("a device");
    context.bind_to_thread().expect("a current context");
    std::mem::forget(context);
}

const INVALID: DriverError = DriverError(CUresult::CUDA_ERROR_INVALID_VALUE);

fn version_is_four() {
    // SAFETY: it takes nothing.
    assert_eq!(unsafe { function::<Version>(c"libnccl_cuda_version")() }, 4);
}

fn alias_of_device_memory_has_its_bytes() {
    device(2);
    // SAFETY: the memory lives until the process ends.
    unsafe {
        let address = result::malloc_sync(100).expect("memory");
        result::memcpy_htod_sync(address, &[7_u8; 100]).expect("a copy");
        let memory = resolve(address + 10, 90).expect("device memory");
        assert_eq!((memory.kind, memory.device), (1, 2));
        let bytes = std::slice::from_raw_parts_mut(memory.alias.cast::<u8>(), 90);
        assert_eq!(bytes, [7; 90]);
        bytes.fill(8);
        let mut back = [0_u8; 100];
        result::memcpy_dtoh_sync(&mut back, address).expect("a copy");
        assert_eq!((back[9], back[10], back[99]), (7, 8, 8));

        let pinned = result::malloc_host(10, 0).expect("pinned memory");
        let memory = resolve(pinned as u64, 10).expect("pinned memory");
        assert_eq!((memory.kind, memory.alias), (2, pinned));
        let local = 0_u8;
        let memory = resolve(&raw const local as u64, 1).expect("host memory");
        assert_eq!((memory.kind, memory.device, memory.id), (0, -1, 0));
    }
}

fn range_beyond_an_allocation_is_not_resolved() {
    device(0);
    // SAFETY: it is freed once.
    unsafe {
        let address = result::malloc_sync(100).expect("memory");
        assert_eq!(resolve(address, 101), Err(INVALID));
        assert!(resolve(address, 100).is_ok());
        result::free_sync(address).expect("a free");
        assert_eq!(resolve(address, 100), Err(INVALID));
    }
}

fn memory_of_a_file_is_device_memory() {
    device(0);
    let file = rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::CLOEXEC).expect("a memory file");
    rustix::fs::ftruncate(file.as_fd(), 4096).expect("room");
    let mut address = 0;
    let shared = function::<Shared>(c"libnccl_cuda_alloc_shared");
    // SAFETY: the file is open and as long; the memory is freed once.
    unsafe {
        shared(file.as_raw_fd(), 4096, &raw mut address).result().expect("memory");
        result::memcpy_htod_sync(address, &[3_u8; 4096]).expect("a copy");
        let mut bytes = [0_u8; 4096];
        let read = rustix::io::pread(file.as_fd(), &mut bytes, 0).expect("bytes");
        assert_eq!((read, bytes), (4096, [3; 4096]));
        result::free_sync(address).expect("a free");
    }
}

fn memory_stays_if_a_check_refuses_its_free() {
    static CHECKED: Mutex<Vec<(CString, CUdeviceptr, usize)>> = Mutex::new(Vec::new());
    /// Refuses each free that it has not seen.
    unsafe extern "C" fn check(function: *const c_char, address: CUdeviceptr, length: usize) -> c_int {
        assert!(may_call_cuda());
        // SAFETY: a C string.
        let call = (unsafe { CStr::from_ptr(function) }.into(), address, length);
        let mut checked = CHECKED.lock().expect("no panic");
        let is_new = !checked.contains(&call);
        checked.push(call);
        c_int::from(is_new)
    }
    device(0);
    let on_free = function::<OnFree>(c"libnccl_cuda_on_free");
    // SAFETY: the check is a function of this program. All memory is freed once.
    unsafe {
        assert_eq!(on_free(None).result(), Err(INVALID));
        on_free(Some(check)).result().expect("a check");
        let stream = stream::create(StreamKind::NonBlocking).expect("a stream");
        let mut own = vec![0_u8; 100];
        let place = own.as_mut_ptr().cast::<c_void>();
        sys::cuMemHostRegister_v2(place, 100, 0).result().expect("a registration");
        let mapped = virtual_memory::mapped(0, 1);
        let device = result::malloc_sync(100).expect("memory");
        let pooled = result::malloc_async(stream, 100).expect("memory");
        let pinned = result::malloc_host(100, 0).expect("memory");
        type Free<'a> = (&'static CStr, CUdeviceptr, usize, &'a dyn Fn() -> Result<(), DriverError>);
        let frees: [Free<'_>; 5] = [
            (c"cuMemFree_v2", device, 100, &|| result::free_sync(device)),
            (c"cuMemFreeAsync", pooled, 100, &|| result::free_async(pooled, stream)),
            (c"cuMemFreeHost", pinned as u64, 100, &|| result::free_host(pinned)),
            (c"cuMemHostUnregister", place as u64, 100, &|| sys::cuMemHostUnregister(place).result()),
            (c"cuMemUnmap", mapped, virtual_memory::PART, &|| {
                sys::cuMemUnmap(mapped, virtual_memory::PART).result()
            }),
        ];
        for (function, address, length, free) in frees {
            assert_eq!(free(), Err(INVALID), "{function:?}");
            assert!(resolve(address, length).is_ok(), "{function:?}: it is still there");
            free().expect("a free");
            let call = (function.into(), address, length);
            assert_eq!(CHECKED.lock().expect("no panic").split_off(0), [call.clone(), call]);
        }
    }
}

fn operation_runs_once_even_if_its_stream_is_destroyed() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn count(_data: *mut c_void) {
        std::thread::sleep(std::time::Duration::from_millis(20));
        RUNS.fetch_add(1, Ordering::SeqCst);
    }
    device(0);
    let stream = stream::create(StreamKind::NonBlocking).expect("a stream");
    // SAFETY: the memory is freed once, and the stream destroyed once.
    unsafe {
        let address = result::malloc_sync(100).expect("memory");
        for _ in 0..3 {
            let access = Access { address, length: 100, writes: 1 };
            enqueue(stream, access, c"count", count, ptr::null_mut()).expect("an operation");
        }
        let beyond = Access { address, length: 101, writes: 1 };
        assert_eq!(enqueue(stream, beyond, c"count", count, ptr::null_mut()), Err(INVALID));
        stream::destroy(stream).expect("an end");
        let access = Access { address, length: 100, writes: 1 };
        assert!(enqueue(stream, access, c"count", count, ptr::null_mut()).is_err());
    }
    result::ctx::synchronize().expect("the end of everything");
    assert_eq!(RUNS.load(Ordering::SeqCst), 3);
}

fn data_is_released_once_after_the_operation_and_not_if_it_is_refused() {
    static STEPS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn run(_data: *mut c_void) {
        let is_first = STEPS.load(Ordering::SeqCst).is_multiple_of(10);
        STEPS.fetch_add(if is_first { 1 } else { 1000 }, Ordering::SeqCst);
    }
    unsafe extern "C" fn release(_data: *mut c_void) {
        STEPS.fetch_add(if may_call_cuda() { 9 } else { 1000 }, Ordering::SeqCst);
    }
    device(0);
    let stream = stream::create(StreamKind::NonBlocking).expect("a stream");
    // SAFETY: the memory lives until the process ends.
    let address = unsafe { result::malloc_sync(100) }.expect("memory");
    let mut expected = 0;
    for length in [100, 101, 100] {
        let access = Access { address, length, writes: 1 };
        let data = ptr::null_mut();
        let enqueued = enqueue_with_release(stream, access, c"run", run, Some(release), data);
        assert_eq!(enqueued, if length == 100 { Ok(()) } else { Err(INVALID) });
        expected += if length == 100 { 10 } else { 0 };
        result::ctx::synchronize().expect("the end of everything");
    }
    // The release comes after the end of the operation, for which the host waited.
    let start = std::time::Instant::now();
    while STEPS.load(Ordering::SeqCst) != expected && start.elapsed().as_secs() < 10 {
        std::thread::yield_now();
    }
    assert_eq!(STEPS.load(Ordering::SeqCst), expected);
}

/// Returns why calls with a stream fail, in at most so many bytes.
fn reason(stream: CUstream, length: usize) -> String {
    let failure = function::<Failure>(c"libnccl_cuda_failure");
    let mut text = [c_char::MAX; 64];
    // SAFETY: the buffer is longer.
    unsafe { failure(stream, text.as_mut_ptr(), length) }.result().expect("a text");
    // SAFETY: a C string.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().expect("ASCII").to_owned()
}

/// Enqueues an operation that fails with the numbers 3 and 4, on a stream of device 0, while another device is current.
fn enqueue_failure() -> CUstream {
    unsafe extern "C" fn fail(_data: *mut c_void) {
        let fail = function::<Fail>(c"libnccl_cuda_fail");
        for number in [3, 4] {
            let reason = CString::new(format!("operation {number} failed")).expect("no null byte");
            // SAFETY: it takes numbers and a C string.
            let failed = unsafe { fail(number, CUresult::CUDA_ERROR_LAUNCH_FAILED, reason.as_ptr()) };
            assert_eq!(failed, CUresult::CUDA_SUCCESS);
        }
    }
    device(0);
    let stream = stream::create(StreamKind::NonBlocking).expect("a stream");
    // SAFETY: the memory lives until the process ends.
    let address = unsafe { result::malloc_sync(100) }.expect("memory");
    device(7);
    let access = Access { address, length: 100, writes: 1 };
    enqueue(stream, access, c"fail", fail, ptr::null_mut()).expect("an operation");
    stream
}

fn failure_stays_with_the_context_of_the_operation_until_it_is_taken_back() {
    let failed = Err(DriverError(CUresult::CUDA_ERROR_LAUNCH_FAILED));
    let recover = function::<Recover>(c"libnccl_cuda_recover");
    let stream = enqueue_failure();
    // SAFETY: the stream is alive, and destroyed once.
    unsafe {
        assert_eq!(stream::synchronize(stream), failed);
        result::ctx::synchronize().expect("another context");
        assert_eq!(reason(ptr::null_mut(), 64), "", "the default stream of another context");
        assert_eq!(reason(stream, 64), "operation 3 failed");
        assert_eq!(reason(stream, 10), "operation");
        device(0);
        assert_eq!(reason(ptr::null_mut(), 64), "operation 3 failed");
        assert_eq!(result::ctx::synchronize(), failed);
        assert_eq!(result::malloc_sync(1).map(|_| ()), failed);
        recover(4).result().expect("a recovery");
        assert_eq!(stream::synchronize(stream), failed, "3 has failed too");
        recover(3).result().expect("a recovery");
        assert_eq!(reason(stream, 64), "");
        stream::synchronize(stream).expect("both are taken back");
        stream::destroy(stream).expect("an end");
    }
}

fn failure_that_is_reported_alone_changes_nothing() {
    let stream = enqueue_failure();
    // SAFETY: the stream is alive.
    unsafe { stream::synchronize(stream) }.expect("no error");
    device(0);
    result::ctx::synchronize().expect("no error");
}

/// Tests without consequences of failures.
pub(crate) const REPORTED: &[Test] = &[Test {
    environment: &[("LIBNCCL_CPU_FAILURES", "report")],
    ..Test::quiet(
        "failure_that_is_reported_alone_changes_nothing",
        failure_that_is_reported_alone_changes_nothing,
    )
}];

fn devices_are_described_before_cuda_is_initialised() {
    // SAFETY: null is an error.
    let null = unsafe { function::<Describe>(c"libnccl_cuda_describe")(0, ptr::null_mut()) };
    assert_eq!(null.result(), Err(INVALID));
    for none in [-1, 8] {
        let error = describe(none).map(drop);
        assert_eq!(error, Err(DriverError(CUresult::CUDA_ERROR_INVALID_DEVICE)), "{none}");
    }
    let early = describe(1).expect("a device");
    let is_initialised = |code| code != Err(DriverError(CUresult::CUDA_ERROR_NOT_INITIALIZED));
    assert!(!is_initialised(result::device::get_count().map(drop)));

    let context = CudaContext::new(1).expect("a device");
    assert_eq!(
        CStr::from_bytes_until_nul(&early.name).expect("a name").to_str(),
        Ok(&*context.name().expect("a name"))
    );
    assert_eq!(early.uuid, context.uuid().expect("a UUID").bytes);
    assert_eq!(early.capability, <[c_int; 2]>::from(context.compute_capability().expect("two numbers")));
    assert_eq!((early.bus, early.free), (2, early.total));
    // SAFETY: the memory lives until the process ends.
    unsafe { result::malloc_sync(1000) }.expect("memory");
    let (free, total) = result::mem_get_info().expect("two numbers");
    let late = describe(1).expect("a device");
    assert_eq!((late.free, late.total), (free as u64, total as u64));
    assert!(late.free < early.free);
}

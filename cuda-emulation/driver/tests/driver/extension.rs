//! The functions beyond CUDA's, from the library that cudarc loaded.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_common::{Access, AccessKind, Device, Interface, Memory, MemoryKind, Work};
use cudarc::driver::result::{self as cuda, event, stream};
use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUresult, CUstream, culib};
use cudarc::driver::{CudaContext, DriverError};

use crate::virtual_memory;
use crate::work::{allocate, destroy, enter, nonblocking, record, require};

crate::tests! {
    alias_of_device_memory_has_its_bytes
    memory_of_a_file_is_device_memory
    memory_is_kept_if_a_check_refuses_its_free
    operation_runs_once_even_if_its_stream_is_destroyed
    data_is_released_once_after_the_operation_and_not_if_it_is_refused
    failure_is_sticky_in_the_operations_context_until_recovered
    devices_are_described_before_cuda_is_initialized
    failure_that_is_only_reported_changes_nothing { LIBNCCL_CPU_FAILURES = "report" }
}

/// Returns the driver's interface.
pub(crate) fn interface() -> &'static Interface {
    // SAFETY: the symbol has this type.
    unsafe { *culib().get::<&Interface>(Interface::SYMBOL.to_bytes_with_nul()).expect("the interface") }
}

/// Turns a code into the result of cudarc's functions.
fn result(code: c_uint) -> Result<(), DriverError> {
    // SAFETY: a code that the driver has returned.
    unsafe { std::mem::transmute::<c_uint, CUresult>(code) }.result()
}

/// Describes a physical device.
pub(crate) fn describe(index: c_int) -> Result<Device, DriverError> {
    let mut device = Device { name: [0; 64], uuid: [0; 16], bus: 0, capability: [0; 2], total: 0, free: 0 };
    // SAFETY: a variable.
    result(unsafe { (interface().describe)(index, &raw mut device) }).map(|()| device)
}

/// Waits for a stream after a call of NCCL, if launches block.
pub(crate) fn launched(stream: CUstream) -> Result<(), DriverError> {
    // SAFETY: a live stream.
    result(unsafe { (interface().launched)(stream.cast()) })
}

/// Returns a function of the library by its name.
pub(crate) fn function<F: Copy>(name: &CStr) -> F {
    // SAFETY: the callers name the function's type.
    unsafe { *culib().get::<F>(name.to_bytes_with_nul()).expect("the function") }
}

pub(crate) fn writes(address: CUdeviceptr, length: usize) -> Access {
    Access { address, length, kind: AccessKind::Write }
}

/// Enqueues an operation with one access, after which its data is released.
pub(crate) fn enqueue(
    stream: CUstream,
    access: Access,
    label: &CStr,
    [run, release]: [Option<Work>; 2],
    data: *mut c_void,
) -> Result<(), DriverError> {
    let enqueue = interface().enqueue;
    // SAFETY: the access is a variable; the callers keep the data.
    result(unsafe { enqueue(stream.cast(), &raw const access, 1, label.as_ptr(), run, release, data) })
}

/// Returns whether the driver accepts calls; this one has an invalid handle. Deadlocks if it does not.
pub(crate) fn may_call_cuda() -> bool {
    // SAFETY: null is no event, which is an error.
    let code = unsafe { cudarc::driver::sys::cuEventQuery(ptr::null_mut()) };
    code == CUresult::CUDA_ERROR_INVALID_HANDLE
}

/// Finds the memory behind a range of addresses.
pub(crate) fn resolve(address: CUdeviceptr, length: usize) -> Result<Memory, DriverError> {
    let mut memory = Memory { kind: MemoryKind::Host, device: -1, alias: ptr::null_mut(), id: 0 };
    // SAFETY: the memory is a variable.
    result(unsafe { (interface().resolve)(address, length, &raw mut memory) }).map(|()| memory)
}

const INVALID: DriverError = DriverError(CUresult::CUDA_ERROR_INVALID_VALUE);

fn alias_of_device_memory_has_its_bytes() {
    enter(2);
    // SAFETY: it is freed once.
    unsafe {
        let address = cuda::malloc_sync(100).expect("memory");
        cuda::memcpy_htod_sync(address, &[7_u8; 100]).expect("a copy");
        let memory = resolve(address + 10, 90).expect("device memory");
        assert_eq!((memory.kind, memory.device), (MemoryKind::Device, 2));
        assert_eq!(resolve(address, 101).map(drop), Err(INVALID), "beyond the allocation");
        let bytes = std::slice::from_raw_parts_mut(memory.alias.cast::<u8>(), 90);
        assert_eq!(bytes, [7; 90]);
        bytes.fill(8);
        let mut back = [0_u8; 100];
        cuda::memcpy_dtoh_sync(&mut back, address).expect("a copy");
        assert_eq!((back[9], back[10], back[99]), (7, 8, 8));
        cuda::free_sync(address).expect("a free");
        assert_eq!(resolve(address, 100).map(drop), Err(INVALID));

        // Across parts that are mapped side by side, as growing allocators do.
        let across = virtual_memory::mapped(2, 2) + virtual_memory::PART as u64 - 5;
        cuda::memset_d8_sync(across, 6, 10).expect("a fill");
        cuda::ctx::synchronize().expect("the end of the fill");
        let memory = resolve(across, 10).expect("device memory");
        assert_eq!((memory.kind, memory.device), (MemoryKind::Device, 2));
        assert_eq!(std::slice::from_raw_parts(memory.alias.cast::<u8>(), 10), [6; 10]);

        let pinned = cuda::malloc_host(10, 0).expect("pinned memory");
        let memory = resolve(pinned as u64, 10).expect("pinned memory");
        assert_eq!((memory.kind, memory.alias), (MemoryKind::Pinned, pinned));
        let local = 0_u8;
        let memory = resolve(&raw const local as u64, 1).expect("host memory");
        assert_eq!((memory.kind, memory.device, memory.id), (MemoryKind::Host, -1, 0));
    }
}

fn memory_of_a_file_is_device_memory() {
    enter(0);
    let file = rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::CLOEXEC).expect("a memory file");
    rustix::fs::ftruncate(file.as_fd(), 4096).expect("room");
    let mut address = 0;
    // SAFETY: the file is open and as long; the memory is freed once.
    unsafe {
        result((interface().alloc_shared)(file.as_raw_fd(), 4096, &raw mut address)).expect("memory");
        cuda::memcpy_htod_sync(address, &[3_u8; 4096]).expect("a copy");
        let mut bytes = [0_u8; 4096];
        let read = rustix::io::pread(file.as_fd(), &mut bytes, 0).expect("bytes");
        assert_eq!((read, bytes), (4096, [3; 4096]));
        cuda::free_sync(address).expect("a free");
    }
}

fn memory_is_kept_if_a_check_refuses_its_free() {
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
    enter(0);
    let on_free = interface().on_free;
    // SAFETY: the check is a function of this program. All memory is freed once.
    unsafe {
        assert_eq!(result(on_free(None)), Err(INVALID));
        result(on_free(Some(check))).expect("a check");
        let stream = nonblocking();
        let mut own = vec![0_u8; 100];
        let place = own.as_mut_ptr().cast::<c_void>();
        sys::cuMemHostRegister_v2(place, 100, 0).result().expect("a registration");
        let mapped = virtual_memory::mapped(0, 1);
        let device = cuda::malloc_sync(100).expect("memory");
        let pooled = cuda::malloc_async(stream, 100).expect("memory");
        let pinned = cuda::malloc_host(100, 0).expect("memory");
        type Free<'a> = (&'static CStr, CUdeviceptr, usize, &'a dyn Fn() -> Result<(), DriverError>);
        let frees: [Free<'_>; 5] = [
            (c"cuMemFree_v2", device, 100, &|| cuda::free_sync(device)),
            (c"cuMemFreeAsync", pooled, 100, &|| cuda::free_async(pooled, stream)),
            (c"cuMemFreeHost", pinned as u64, 100, &|| cuda::free_host(pinned)),
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
    enter(0);
    let (stream, address) = (nonblocking(), allocate(100));
    let enqueue =
        |length| enqueue(stream, writes(address, length), c"count", [Some(count), None], ptr::null_mut());
    (0..3).for_each(|_| enqueue(100).expect("an operation"));
    assert_eq!(enqueue(101), Err(INVALID));
    destroy(stream);
    assert!(enqueue(100).is_err());
    cuda::ctx::synchronize().expect("the end of everything");
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
    enter(0);
    let (stream, address) = (nonblocking(), allocate(100));
    let functions = [Some(run as Work), Some(release)];
    for (length, result, expected) in [(100, Ok(()), 10), (101, Err(INVALID), 10), (100, Ok(()), 20)] {
        let enqueued = enqueue(stream, writes(address, length), c"run", functions, ptr::null_mut());
        assert_eq!(enqueued, result);
        cuda::ctx::synchronize().expect("the end of everything");
        // The data is released after the operation has ended, which the host waited for.
        require(&STEPS, expected);
    }
}

type Failure = unsafe extern "C" fn(CUstream, *mut c_char, usize) -> CUresult;

/// Returns the reason why calls with a stream fail, in at most this many bytes.
fn reason(stream: CUstream, length: usize) -> String {
    let failure = function::<Failure>(c"libnccl_cuda_failure");
    let mut text = [c_char::MAX; 64];
    // SAFETY: the buffer is longer.
    unsafe { failure(stream, text.as_mut_ptr(), length) }.result().expect("a text");
    // SAFETY: a C string.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().expect("ASCII").to_owned()
}

/// Enqueues an operation that fails with the numbers 3 and 4, on a stream of device 0, while another device is current. Returns the
/// stream, and an event before the operation.
fn enqueue_failure() -> (CUstream, CUevent) {
    unsafe extern "C" fn fail(_data: *mut c_void) {
        let fail = interface().fail;
        for number in [3, 4] {
            let reason = CString::new(format!("operation {number} failed")).expect("no null byte");
            // SAFETY: it takes numbers and a C string.
            let failed =
                unsafe { fail(number, CUresult::CUDA_ERROR_LAUNCH_FAILED as c_uint, reason.as_ptr()) };
            assert_eq!(failed, 0);
        }
    }
    enter(0);
    let (stream, access) = (nonblocking(), writes(allocate(100), 100));
    let before = record(stream);
    enter(7);
    enqueue(stream, access, c"fail", [Some(fail), None], ptr::null_mut()).expect("an operation");
    (stream, before)
}

fn failure_is_sticky_in_the_operations_context_until_recovered() {
    let failed = Err(DriverError(CUresult::CUDA_ERROR_LAUNCH_FAILED));
    let recover = interface().recover;
    enter(0);
    let memory = allocate(4);
    let (stream, before) = enqueue_failure();
    // SAFETY: the stream is alive, and destroyed once.
    unsafe {
        assert_eq!(stream::synchronize(stream), failed);
        cuda::ctx::synchronize().expect("another context");
        assert_eq!(reason(ptr::null_mut(), 64), "", "the default stream of another context");
        assert_eq!(reason(stream, 64), "operation 3 failed");
        assert_eq!(reason(stream, 10), "operation");
        enter(0);
        assert_eq!(reason(ptr::null_mut(), 64), "operation 3 failed");
        for _ in 0..2 {
            assert_eq!(cuda::ctx::synchronize(), failed);
            assert_eq!(sys::cuStreamQuery(stream).result(), failed);
            assert_eq!(event::query(before), failed);
            assert_eq!(event::synchronize(before), failed);
            assert_eq!(cuda::malloc_sync(1).map(drop), failed);
            assert_eq!(cuda::memcpy_dtoh_sync(&mut [0_u8; 4], memory), failed);
            assert_eq!(cuda::memcpy_dtoh_async(&mut [0_u8; 4], memory, stream), failed);
        }
        result(recover(4)).expect("a recovery");
        assert_eq!(stream::synchronize(stream), failed, "3 has failed too");
        result(recover(3)).expect("a recovery");
        assert_eq!(reason(stream, 64), "");
        stream::synchronize(stream).expect("both are taken back");
        stream::destroy(stream).expect("an end");
    }
}

fn failure_that_is_only_reported_changes_nothing() {
    let (stream, _) = enqueue_failure();
    // SAFETY: the stream is alive.
    unsafe { stream::synchronize(stream) }.expect("no error");
    enter(0);
    cuda::ctx::synchronize().expect("no error");
}

fn devices_are_described_before_cuda_is_initialized() {
    // SAFETY: null is an error.
    let null = unsafe { (interface().describe)(0, ptr::null_mut()) };
    assert_eq!(result(null), Err(INVALID));
    for none in [-1, 8] {
        let error = describe(none).map(drop);
        assert_eq!(error, Err(DriverError(CUresult::CUDA_ERROR_INVALID_DEVICE)), "{none}");
    }
    let early = describe(1).expect("a device");
    let is_initialised = |code| code != Err(DriverError(CUresult::CUDA_ERROR_NOT_INITIALIZED));
    assert!(!is_initialised(cuda::device::get_count().map(drop)));

    let context = CudaContext::new(1).expect("a device");
    assert_eq!(
        CStr::from_bytes_until_nul(&early.name).expect("a name").to_str(),
        Ok(&*context.name().expect("a name"))
    );
    assert_eq!(early.uuid, context.uuid().expect("a UUID").bytes.map(|byte| byte as u8));
    assert_eq!(early.capability, <[c_int; 2]>::from(context.compute_capability().expect("two numbers")));
    assert_eq!((early.bus, early.free), (2, early.total));
    allocate(1000);
    let (free, total) = cuda::mem_get_info().expect("two numbers");
    let late = describe(1).expect("a device");
    assert_eq!((late.free, late.total), (free as u64, total as u64));
    assert!(late.free < early.free);
}

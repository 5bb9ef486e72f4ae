//! The subset of the emulated driver's API that NCCL operations need. All calls into CUDA are in this file.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

use cuda_common::{Access, FreeCheck, Interface, Memory, MemoryKind};
use libnccl::sys::{cudaStream_t, ncclResult_t};

use crate::diag::debug;
use crate::diag::error::{Error, Result};

const CUDA_SUCCESS: c_uint = 0;
const CUDA_ERROR_NOT_READY: c_uint = 600;
/// The sticky error of a GPU's context after a kernel, such as one of NCCL's, has failed.
const CUDA_ERROR_LAUNCH_FAILED: c_uint = 719;
const CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: c_uint = 33;
const CU_EVENT_DISABLE_TIMING: c_uint = 2;
const CU_EVENT_RECORD_EXTERNAL: c_uint = 1;
const CU_EVENT_WAIT_EXTERNAL: c_uint = 1;
const CU_STREAM_CAPTURE_STATUS_NONE: c_uint = 0;
const CU_STREAM_CAPTURE_STATUS_INVALIDATED: c_uint = 2;
const CU_STREAM_CAPTURE_MODE_RELAXED: c_uint = 2;

type CuDevicePtr = u64;
type CuContext = *mut c_void;
type CuEvent = *mut c_void;

/// Work on a stream. Runs once, or at each launch of the graph if it is captured.
type Work = Box<dyn Fn() + Send + Sync>;

/// A user's stream: a CUDA handle, NULL for the default stream, or one of the special handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream(*mut c_void);

// SAFETY: a handle that any thread may use; only CUDA dereferences it.
unsafe impl Send for Stream {}
// SAFETY: likewise.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(stream: cudaStream_t) -> Self {
        Self(stream.cast())
    }

    pub(crate) fn addr(self) -> usize {
        self.0.addr()
    }
}

/// The number of the graph into which operations on a stream are captured, or `None` if they are executed.
pub(crate) type Capture = Option<u64>;

/// An event, destroyed on drop.
pub(crate) struct Event {
    event: CuEvent,
    driver: &'static Driver,
}

// SAFETY: a handle that any thread may use; only CUDA dereferences it.
unsafe impl Send for Event {}
// SAFETY: likewise.
unsafe impl Sync for Event {}

impl Event {
    /// Returns `true` if the recorded work is done, or its device has failed.
    pub(crate) fn is_over(&self) -> bool {
        // SAFETY: an event that lives.
        let query = || unsafe { (self.driver.functions.cuEventQuery)(self.event) };
        self.driver.relaxed(query) != CUDA_ERROR_NOT_READY
    }

    /// Waits until the recorded work is done, or its device has failed.
    pub(crate) fn synchronize(&self) {
        // SAFETY: an event that lives.
        let _ = self.driver.relaxed(|| unsafe { (self.driver.functions.cuEventSynchronize)(self.event) });
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this value owns the event. CUDA keeps it for work that still refers to it.
        let _ = unsafe { (self.driver.functions.cuEventDestroy_v2)(self.event) };
    }
}

macro_rules! define_functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// Functions of CUDA's driver, by name. All return a `CUresult`.
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_uint,)*
        }

        impl Functions {
            /// Looks up all functions, or returns the name of a missing one.
            ///
            /// # Safety
            /// `library` must be a handle of the emulated driver, which must never be unloaded.
            unsafe fn look_up(library: *mut c_void) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        // SAFETY: a valid handle and a C string.
                        let symbol = unsafe { libc::dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast()) };
                        if symbol.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: CUDA's function of this name has this signature.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_uint>(symbol) }
                    },)*
                })
            }
        }
    };
}

define_functions! {
    cuInit(c_uint);
    cuGetErrorName(c_uint, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGetAttribute(*mut c_int, c_uint, c_int);
    cuDevicePrimaryCtxRetain(*mut CuContext, c_int);
    cuCtxGetDevice(*mut c_int);
    cuCtxPushCurrent_v2(CuContext);
    cuCtxPopCurrent_v2(*mut CuContext);
    cuEventCreate(*mut CuEvent, c_uint);
    cuEventRecordWithFlags(CuEvent, *mut c_void, c_uint);
    cuEventQuery(CuEvent);
    cuEventSynchronize(CuEvent);
    cuEventDestroy_v2(CuEvent);
    cuStreamWaitEvent(*mut c_void, CuEvent, c_uint);
    cuStreamGetCaptureInfo_v2(
        *mut c_void,
        *mut c_uint,
        *mut u64,
        *mut *mut c_void,
        *mut *const c_void,
        *mut usize
    );
    cuThreadExchangeStreamCaptureMode(*mut c_uint);
    cuMemFree_v2(CuDevicePtr);
}

pub(crate) struct Driver {
    functions: Functions,
    interface: &'static Interface,
}

/// Returns the emulated driver if the process has loaded it.
pub(crate) fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    /// The number of loaded objects when the last look-up found no CUDA driver. Avoids look-ups, because the linker opens files
    /// for them.
    static WITHOUT: AtomicU64 = AtomicU64::new(0);
    if let Some(driver) = DRIVER.get() {
        return driver.as_ref();
    }
    let objects = loaded_objects();
    if WITHOUT.load(Ordering::Relaxed) == objects {
        return None;
    }
    // SAFETY: a C string; loads nothing.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        WITHOUT.store(objects, Ordering::Relaxed);
        return None;
    }
    // SAFETY: a valid handle, which is not used any more.
    DRIVER.get_or_init(|| unsafe { Driver::find(library) }).as_ref()
}

/// Returns the number of objects, such as libraries, that the process has loaded so far.
fn loaded_objects() -> u64 {
    unsafe extern "C" fn read(object: *mut libc::dl_phdr_info, _: usize, count: *mut c_void) -> c_int {
        // SAFETY: the linker's description of an object, and a pointer to the caller's `count`.
        unsafe { *count.cast::<u64>() = (*object).dlpi_adds };
        // Every object's description has the number, so stop after the first.
        1
    }
    let mut count = 0;
    // SAFETY: `read` stores a number at the pointer that is passed to it.
    unsafe { libc::dl_iterate_phdr(Some(read), (&raw mut count).cast()) };
    count
}

impl Driver {
    /// Returns the driver of a library, or `None` if it is NVIDIA's, or unusable.
    ///
    /// # Safety
    /// `library` must be a valid handle. The function takes ownership of it.
    unsafe fn find(library: *mut c_void) -> Option<Self> {
        // SAFETY: the caller's contract. The handle is closed only if the driver is NVIDIA's.
        let found = match unsafe { Interface::of(library) } {
            Ok(None) => {
                // SAFETY: the caller's contract.
                unsafe { libc::dlclose(library) };
                return None;
            }
            // SAFETY: the handle is never closed.
            Ok(Some(interface)) => match unsafe { Functions::look_up(library) } {
                Ok(functions) => Ok(Self { functions, interface }),
                Err(name) => Err(format!("it has no {name}")),
            },
            Err(why) => Err(why),
        };
        let report = |why: &String| {
            debug::warn_on_stderr(&format!("the CUDA emulation, libcuda.so.1, is not used: {why}"));
        };
        found.inspect_err(report).ok()
    }

    /// Returns the calling thread's current device, or device 0 if the thread has not chosen one.
    pub(crate) fn current_device(&self) -> Result<i32> {
        self.check("cuInit", self.init())?;
        Ok(self.device_of_context().unwrap_or(0))
    }

    pub(crate) fn devices(&self) -> Result<i32> {
        self.check("cuInit", self.init())?;
        let mut count = 0;
        // SAFETY: a valid out-parameter.
        let code = unsafe { (self.functions.cuDeviceGetCount)(&raw mut count) };
        self.check("cuDeviceGetCount", code).map(|()| count)
    }

    /// Returns a device's PCI bus number. It identifies the physical device, which processes may number differently because of
    /// `CUDA_VISIBLE_DEVICES`.
    pub(crate) fn bus(&self, device: i32) -> Result<i32> {
        let mut bus = 0;
        // SAFETY: a valid out-parameter.
        let code = unsafe {
            (self.functions.cuDeviceGetAttribute)(&raw mut bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device)
        };
        self.check("cuDeviceGetAttribute", code).map(|()| bus)
    }

    fn init(&self) -> c_uint {
        // SAFETY: the flags must be 0.
        unsafe { (self.functions.cuInit)(0) }
    }

    /// Returns the device of the calling thread's current context, if any.
    fn device_of_context(&self) -> Option<i32> {
        let mut device = 0;
        // SAFETY: a valid out-parameter.
        let code = unsafe { (self.functions.cuCtxGetDevice)(&raw mut device) };
        (code == CUDA_SUCCESS).then_some(device)
    }

    /// Calls `act` while a context of `device` is current.
    pub(crate) fn on_device<T>(&self, device: i32, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.device_of_context() == Some(device) {
            return act();
        }
        let mut context = ptr::null_mut();
        // Never released, like by the runtime API that NCCL uses: a device's primary context then persists.
        // SAFETY: a valid out-parameter.
        let code = unsafe { (self.functions.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        // SAFETY: a context that was just retained.
        self.check("cuCtxPushCurrent", unsafe { (self.functions.cuCtxPushCurrent_v2)(context) })?;
        let popped = Popped(self);
        let result = act();
        drop(popped);
        result
    }

    /// Returns the address at which this process can read and write `length` bytes at `address`, the argument named `what`.
    pub(crate) fn resolve(&self, what: &str, address: usize, length: usize) -> Result<usize> {
        let mut memory = Memory { kind: MemoryKind::Host, device: 0, alias: ptr::null_mut(), id: 0 };
        // SAFETY: a valid out-parameter; the function dereferences no address that is not registered with it.
        let code = unsafe { (self.interface.resolve)(address as CuDevicePtr, length, &raw mut memory) };
        if code != CUDA_SUCCESS {
            return Err(Error::argument(format!(
                "{what}, {length} bytes at {address:#x}, is not inside one allocation of CUDA, or was freed: {}",
                self.name(code)
            )));
        }
        if memory.kind == MemoryKind::Host || memory.alias.is_null() {
            return Err(Error::argument(format!(
                "{what}, {length} bytes at {address:#x}, is host memory that is not registered with CUDA, which a GPU cannot use: \
                 expected device memory, pinned host memory or managed memory"
            )));
        }
        Ok(memory.alias.expose_provenance())
    }

    /// Enqueues `work` on `stream`. When all earlier work is done, `work` is called on another thread: once, or, if `stream` is
    /// captured, at each launch of the graph. `label` names the work in reports.
    pub(crate) fn enqueue(
        &self,
        stream: Stream,
        accesses: &[Access],
        label: &CStr,
        work: impl Fn() + Send + Sync + 'static,
    ) -> Result {
        let work: Box<Work> = Box::new(Box::new(work));
        let data = Box::into_raw(work);
        // SAFETY: the accesses and the label are copied. If the work is accepted, `call` is called with `data`, which it borrows,
        // and afterwards `release` is called once, which recreates the box. Otherwise, neither is called.
        let code = unsafe {
            (self.interface.enqueue)(
                stream.0,
                accesses.as_ptr(),
                accesses.len(),
                label.as_ptr(),
                Some(call),
                Some(release),
                data.cast(),
            )
        };
        if code != CUDA_SUCCESS {
            // SAFETY: the work was not accepted, so this is the box's only owner.
            drop(unsafe { Box::from_raw(data) });
        }
        self.check("the stream's launch of an operation", code)
    }

    /// Registers `check`, which must always be the same function, to be called before CUDA frees memory.
    pub(crate) fn on_free(&self, check: FreeCheck) {
        static ADDED: Once = Once::new();
        ADDED.call_once(|| {
            // SAFETY: a function that stays loaded, and accepts the arguments that the driver passes.
            let _ = unsafe { (self.interface.on_free)(Some(check)) };
        });
    }

    /// Makes CUDA calls in the context of the operation that this thread executes return an error, until
    /// [`recover`](Self::recover) is called with the same `number`. Reports of the error can include `reason`.
    pub(crate) fn fail(&self, number: u64, reason: &str) {
        let reason = CString::new(reason).unwrap_or_default();
        // SAFETY: takes numbers and a C string. Has no effect on a thread that executes no operation.
        let _ = unsafe { (self.interface.fail)(number, CUDA_ERROR_LAUNCH_FAILED, reason.as_ptr()) };
    }

    /// Waits for `stream` if `CUDA_LAUNCH_BLOCKING=1` is set.
    pub(crate) fn launched(&self, stream: Stream) -> Result {
        // SAFETY: the stream is the caller's, by the contract of NCCL's functions.
        let code = unsafe { (self.interface.launched)(stream.0) };
        self.check("an operation that CUDA_LAUNCH_BLOCKING=1 waits for", code)
    }

    /// Reverts the effect of [`fail`](Self::fail) with the same number.
    pub(crate) fn recover(&self, number: u64) {
        // SAFETY: takes a number.
        let _ = unsafe { (self.interface.recover)(number) };
    }

    /// Creates an event in the current context.
    pub(crate) fn create_event(&'static self) -> Result<Event> {
        let mut event = ptr::null_mut();
        // SAFETY: a valid out-parameter.
        let code = unsafe { (self.functions.cuEventCreate)(&raw mut event, CU_EVENT_DISABLE_TIMING) };
        self.check("cuEventCreate", code).map(|()| Event { event, driver: self })
    }

    /// Returns whether operations on `stream` are currently captured.
    pub(crate) fn capture(&self, stream: Stream) -> Result<Capture> {
        let (mut status, mut id) = (CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let (graph, nodes, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is the caller's, by the contract of NCCL's functions. The out-parameters are valid or null.
        let code = unsafe {
            (self.functions.cuStreamGetCaptureInfo_v2)(
                stream.0,
                &raw mut status,
                &raw mut id,
                graph,
                nodes,
                count,
            )
        };
        self.check("cuStreamGetCaptureInfo", code)?;
        if status == CU_STREAM_CAPTURE_STATUS_INVALIDATED {
            return Err(Error {
                code: ncclResult_t::ncclUnhandledCudaError,
                text: "the stream's capture has failed before, by a call that captures forbid or by another error; it has to \
                       be ended first, with cudaStreamEndCapture"
                    .into(),
            });
        }
        Ok((status != CU_STREAM_CAPTURE_STATUS_NONE).then_some(id))
    }

    /// Records the work enqueued on `stream` so far. With a `capture` of the stream, records it at each launch of the graph.
    pub(crate) fn record(&self, event: &Event, stream: Stream, capture: Capture) -> Result {
        let flags = if capture.is_some() { CU_EVENT_RECORD_EXTERNAL } else { 0 };
        // SAFETY: an event that lives; the stream is the caller's, by the contract of NCCL's functions.
        let code = unsafe { (self.functions.cuEventRecordWithFlags)(event.event, stream.0, flags) };
        self.check("cuEventRecord", code)
    }

    /// Makes `stream`, or with a `capture` each launch of its graph, wait for the work that `event` has recorded.
    pub(crate) fn wait(&self, stream: Stream, event: &Event, capture: Capture) -> Result {
        let flags = if capture.is_some() { CU_EVENT_WAIT_EXTERNAL } else { 0 };
        // SAFETY: as in `record`.
        let code = unsafe { (self.functions.cuStreamWaitEvent)(stream.0, event.event, flags) };
        self.check("cuStreamWaitEvent", code)
    }

    /// Calls a CUDA function that may wait, and permits the wait even while this thread is capturing streams: the work that NCCL
    /// waits for is not captured.
    fn relaxed(&self, call: impl FnOnce() -> c_uint) -> c_uint {
        let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a valid mode, which is replaced by the previous one.
        let _ = unsafe { (self.functions.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
        let code = call();
        // SAFETY: the mode that was replaced.
        let _ = unsafe { (self.functions.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
        code
    }

    /// Maps a file of `length` bytes as device memory of the current device.
    pub(crate) fn allocate_shared(&self, file: BorrowedFd<'_>, length: usize) -> Result<usize> {
        let mut address = 0;
        // SAFETY: an open file, and a valid out-parameter.
        let code = unsafe { (self.interface.alloc_shared)(file.as_raw_fd(), length, &raw mut address) };
        self.check(&format!("the allocation of {length} bytes of device memory"), code)?;
        Ok(address as usize)
    }

    /// Frees device memory once all work of its context is done.
    ///
    /// # Safety
    /// The memory must no longer be used.
    pub(crate) unsafe fn free(&self, address: usize) -> Result {
        // SAFETY: the caller's contract.
        self.check("cuMemFree", unsafe { (self.functions.cuMemFree_v2)(address as CuDevicePtr) })
    }

    fn check(&self, what: &str, code: c_uint) -> Result {
        if code == CUDA_SUCCESS {
            return Ok(());
        }
        let text = format!("{what} failed: {}", self.name(code));
        Err(Error { code: ncclResult_t::ncclUnhandledCudaError, text })
    }

    /// Returns CUDA's name of an error.
    fn name(&self, code: c_uint) -> String {
        let mut name = ptr::null();
        // SAFETY: a valid out-parameter.
        let found = unsafe { (self.functions.cuGetErrorName)(code, &raw mut name) };
        if found != CUDA_SUCCESS || name.is_null() {
            return format!("CUDA error {code}");
        }
        // SAFETY: a C string that lives as long as the library.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// RAII guard that pops the current context when it is dropped.
struct Popped<'a>(&'a Driver);

impl Drop for Popped<'_> {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // SAFETY: a valid out-parameter.
        let _ = unsafe { (self.0.functions.cuCtxPopCurrent_v2)(&raw mut context) };
    }
}

/// Calls the work at `data`.
///
/// # Safety
/// `data` must be from `enqueue`, and must not have been released.
unsafe extern "C" fn call(data: *mut c_void) {
    // SAFETY: the caller's contract.
    let work = unsafe { &*data.cast::<Work>() };
    // Must not unwind into CUDA. The operation records its panic.
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// Drops the work at `data`.
///
/// # Safety
/// `data` must be from `enqueue`, and must no longer be used.
unsafe extern "C" fn release(data: *mut c_void) {
    // SAFETY: the caller's contract.
    let work = unsafe { Box::from_raw(data.cast::<Work>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(work)));
}

//! Owned memory, registrations, windows, one-sided operations and the barrier: over the CPU implementation, and over
//! a table that writes down which C functions are called with what, and takes its memory for a GPU's.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libnccl::sys::{self, Functions, ncclComm_t, ncclDataType_t, ncclResult_t, ncclWindow_t};
use libnccl::{
    Communicator, Error, MemorySpace, Nccl, NcclBuffer, ReduceOp, Registration, Result, ResultCode, Signal,
    StreamRef, Version, WaitSignal, Window, WindowFlags,
};

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;
const HANDLE: usize = 0x1230;
const WINDOW: usize = 0x4560;

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// The function that fails, and how.
    static FAILURE: Cell<(&'static str, u32)> = const { Cell::new(("", 0)) };
    /// What registrations answer.
    static HANDLES: Cell<(usize, usize)> = const { Cell::new((HANDLE, WINDOW)) };
    static VERSION: Cell<c_int> = const { Cell::new(23203) };
    static MISALIGNED: Cell<usize> = const { Cell::new(0) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Slots to be written when the group ends.
    static SLOTS: RefCell<Vec<*mut ncclWindow_t>> = const { RefCell::new(Vec::new()) };
}

/// Writes a call down, and says what it answers.
fn called(function: &'static str, arguments: &str) -> ncclResult_t {
    CALLS.with_borrow_mut(|calls| calls.push(format!("{function}{arguments}")));
    let (fails, code) = FAILURE.get();
    ncclResult_t(if fails == function { code } else { 0 })
}

fn calls() -> Vec<String> {
    CALLS.take()
}

fn is_success(code: ncclResult_t) -> bool {
    code == ncclResult_t::ncclSuccess
}

unsafe extern "C" fn get_version(version: *mut c_int) -> ncclResult_t {
    // SAFETY: the facade's own variable.
    unsafe { *version = VERSION.get() };
    ncclResult_t::ncclSuccess
}

unsafe extern "C" fn mem_alloc(pointer: *mut *mut c_void, bytes: usize) -> ncclResult_t {
    let code = called("alloc", &format!("({bytes})"));
    if is_success(code) {
        let layout = Layout::from_size_align(bytes + 8, 4096).unwrap();
        // SAFETY: not of size zero; leaked, and the facade's own variable.
        unsafe { *pointer = alloc_zeroed(layout).add(MISALIGNED.get()).cast() };
    }
    code
}

unsafe extern "C" fn mem_free(_: *mut c_void) -> ncclResult_t {
    called("free", "")
}

unsafe extern "C" fn register(
    _: ncclComm_t,
    _: *mut c_void,
    bytes: usize,
    out: *mut *mut c_void,
) -> ncclResult_t {
    let code = called("register", &format!("({bytes})"));
    if is_success(code) {
        // SAFETY: the facade's own variable.
        unsafe { *out = ptr::without_provenance_mut(HANDLES.get().0) };
    }
    code
}

unsafe extern "C" fn deregister(_: ncclComm_t, handle: *mut c_void) -> ncclResult_t {
    called("deregister", &format!("({:#x})", handle.addr()))
}

unsafe extern "C" fn window_register(
    _: ncclComm_t,
    _: *mut c_void,
    bytes: usize,
    slot: *mut ncclWindow_t,
    flags: c_int,
) -> ncclResult_t {
    let code = called("window", &format!("({bytes}, {flags})"));
    if is_success(code) && DEPTH.get() > 0 {
        SLOTS.with_borrow_mut(|slots| slots.push(slot));
    } else if is_success(code) {
        // SAFETY: the facade's slot.
        unsafe { *slot = ptr::without_provenance_mut(HANDLES.get().1) };
    }
    code
}

unsafe extern "C" fn window_deregister(_: ncclComm_t, window: ncclWindow_t) -> ncclResult_t {
    called("window_end", &format!("({:#x})", window.addr()))
}

unsafe extern "C" fn user_ptr(_: ncclComm_t, window: ncclWindow_t, out: *mut *mut c_void) -> ncclResult_t {
    let code = called("user_ptr", &format!("({:#x})", window.addr()));
    // SAFETY: the facade's own variable.
    unsafe { *out = ptr::without_provenance_mut(0x1000) };
    code
}

unsafe extern "C" fn put_signal(
    _: *const c_void,
    count: usize,
    data_type: ncclDataType_t,
    peer: c_int,
    window: ncclWindow_t,
    offset: usize,
    index: c_int,
    context: c_int,
    flags: c_uint,
    _: ncclComm_t,
    _: sys::cudaStream_t,
) -> ncclResult_t {
    let (data_type, window) = (data_type.0, window.addr());
    let arguments =
        format!("({count}, {data_type}, {peer}, {window:#x}, {offset}, {index}, {context}, {flags})");
    called("put", &arguments)
}

unsafe extern "C" fn signal(
    peer: c_int,
    index: c_int,
    context: c_int,
    flags: c_uint,
    _: ncclComm_t,
    _: sys::cudaStream_t,
) -> ncclResult_t {
    called("signal", &format!("({peer}, {index}, {context}, {flags})"))
}

unsafe extern "C" fn wait_signal(
    count: c_int,
    signals: *mut sys::ncclWaitSignalDesc_t,
    _: ncclComm_t,
    _: sys::cudaStream_t,
) -> ncclResult_t {
    // SAFETY: the facade's array.
    let signals = unsafe { std::slice::from_raw_parts(signals, usize::try_from(count).unwrap()) };
    let signals: Vec<_> = signals.iter().map(|s| (s.opCnt, s.peer, s.sigIdx, s.ctx)).collect();
    called("wait", &format!("({signals:?})"))
}

unsafe extern "C" fn abort(comm: ncclComm_t) -> ncclResult_t {
    called("abort", "");
    // SAFETY: passed on.
    unsafe { libnccl_cpu::TABLE.ncclCommAbort.unwrap()(comm) }
}

unsafe extern "C" fn group_start() -> ncclResult_t {
    DEPTH.set(DEPTH.get() + 1);
    // SAFETY: takes nothing.
    unsafe { libnccl_cpu::TABLE.ncclGroupStart.unwrap()() }
}

unsafe extern "C" fn group_end() -> ncclResult_t {
    DEPTH.set(DEPTH.get().saturating_sub(1));
    // SAFETY: takes nothing.
    let code = unsafe { libnccl_cpu::TABLE.ncclGroupEnd.unwrap()() };
    for slot in SLOTS.take() {
        let window = if is_success(code) { HANDLES.get().1 } else { 0 };
        // SAFETY: the facade's slot.
        unsafe { *slot = ptr::without_provenance_mut(window) };
    }
    code
}

/// Without `ncclParamGetParameter` it does not say that its memory is the host's.
const TABLE: Functions = Functions {
    ncclGetVersion: Some(get_version),
    ncclParamGetParameter: None,
    ncclMemAlloc: Some(mem_alloc),
    ncclMemFree: Some(mem_free),
    ncclCommRegister: Some(register),
    ncclCommDeregister: Some(deregister),
    ncclCommWindowRegister: Some(window_register),
    ncclCommWindowDeregister: Some(window_deregister),
    ncclWinGetUserPtr: Some(user_ptr),
    ncclPutSignal: Some(put_signal),
    ncclSignal: Some(signal),
    ncclWaitSignal: Some(wait_signal),
    ncclCommAbort: Some(abort),
    ncclGroupStart: Some(group_start),
    ncclGroupEnd: Some(group_end),
    ..libnccl_cpu::TABLE
};

fn nccl(table: Functions) -> Nccl {
    // SAFETY: the functions above, which keep NCCL's contracts as far as the facade can see.
    unsafe { Nccl::from_table("a recording table", table) }.unwrap()
}

fn device() -> (Nccl, Communicator) {
    let nccl = nccl(TABLE);
    assert_eq!(nccl.memory_space(), MemorySpace::Device);
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    (nccl, comm)
}

/// The same with host memory.
fn host() -> (Nccl, Communicator) {
    let nccl = nccl(Functions { ncclParamGetParameter: libnccl_cpu::TABLE.ncclParamGetParameter, ..TABLE });
    assert_eq!(nccl.memory_space(), MemorySpace::Host);
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    (nccl, comm)
}

fn failing<R>(function: &'static str, code: u32, act: impl FnOnce() -> R) -> R {
    FAILURE.set((function, code));
    let result = act();
    FAILURE.set(("", 0));
    result
}

fn text<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

fn sum(comm: &Communicator, buffer: &mut NcclBuffer<f32>) {
    comm.all_reduce_in_place(buffer, ReduceOp::Sum, STREAM).unwrap();
}

/// Every code but success and "in progress", which is not an error.
const CODES: [u32; 8] = [1, 2, 3, 4, 5, 6, 8, 77];

#[test]
fn a_buffer_is_allocated_and_freed_once() {
    let (nccl, _comm) = device();
    let buffer = nccl.alloc::<f64>(3).unwrap();
    assert_eq!((buffer.len(), buffer.is_empty(), buffer.as_slice()), (3, false, None));
    drop(buffer);
    assert_eq!(calls(), ["alloc(24)", "free"]);
    nccl.alloc::<i8>(5).unwrap().free().unwrap();
    assert_eq!(calls(), ["alloc(5)", "free"]);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _buffer = nccl.alloc::<i8>(5).unwrap();
        panic!("with a buffer");
    }));
    assert!(unwound.is_err());
    assert_eq!(calls(), ["alloc(5)", "free"]);
}

#[test]
fn lengths_that_are_none_or_too_many() {
    let (nccl, comm) = device();
    let mut empty = nccl.alloc::<f32>(0).unwrap();
    assert!(empty.is_empty() && empty.get(..).is_some_and(|view| view.is_empty()));
    sum(&comm, &mut empty);
    assert_eq!(text(comm.register(&empty)), "register: the buffer is empty; expected at least one element");
    assert!(text(comm.register_window(&mut empty, WindowFlags::DEFAULT)).contains("is empty"));
    empty.free().unwrap();
    let much = usize::MAX / 4;
    let problem = format!("alloc: {much} elements of 8 bytes exceed isize::MAX bytes");
    assert_eq!(text(nccl.alloc::<f64>(much)), problem);
    assert!(matches!(nccl.alloc::<i8>(usize::MAX), Err(Error::InvalidArgument { .. })));
    assert!(calls().is_empty());
    assert_eq!(libnccl_cpu::nccl().alloc::<i64>(0).unwrap().as_slice(), Some(&[][..]));
}

#[test]
fn every_error_of_an_allocation() {
    let (nccl, _comm) = device();
    for code in CODES {
        let error = failing("alloc", code, || nccl.alloc::<f32>(1)).unwrap_err();
        assert!(matches!(error, Error::Nccl { call: "ncclMemAlloc", .. }), "{error}");
        assert_eq!(error.code().map(|code| code.as_raw().0), Some(code));
        let buffer = nccl.alloc::<f32>(1).unwrap();
        let error = failing("free", code, || buffer.free()).unwrap_err();
        assert!(matches!(error, Error::Nccl { call: "ncclMemFree", .. }), "{error}");
        assert_eq!(calls(), ["alloc(4)", "alloc(4)", "free"]);
    }
    MISALIGNED.set(1);
    assert!(matches!(nccl.alloc::<f32>(1), Err(Error::InvalidUsage { call: "alloc", .. })));
}

#[test]
fn work_in_flight_keeps_memory() {
    let (nccl, comm) = device();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    sum(&comm, &mut buffer);
    drop(buffer);
    assert_eq!(calls(), ["alloc(32)"]);
    let problem = "free: work that uses the memory may not have run yet; wait for it, then call assume_idle";
    let buffer = nccl.alloc::<f32>(8).unwrap();
    comm.broadcast(&buffer, &mut nccl.alloc(8).unwrap(), 0, STREAM).unwrap();
    assert_eq!(text(buffer.free()), problem);
    assert_eq!(calls(), ["alloc(32)", "alloc(32)"]);
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    nccl.group(|g| g.all_reduce_in_place(&comm, &mut buffer, ReduceOp::Sum, STREAM)).unwrap();
    // SAFETY: the table's work runs at once.
    unsafe { buffer.assume_idle() };
    let view = buffer.get_mut(2..=3).unwrap();
    assert_eq!((view.len(), view.memory_space()), (2, Some(MemorySpace::Device)));
    comm.all_reduce_in_place(view, ReduceOp::Sum, STREAM).unwrap();
    // SAFETY: as above.
    unsafe { buffer.assume_idle() };
    drop(buffer);
    assert_eq!(calls(), ["alloc(32)", "free"]);
}

#[test]
fn parts() {
    let nccl = libnccl_cpu::nccl();
    let mut buffer = nccl.alloc::<u8>(4).unwrap();
    buffer.as_mut_slice().unwrap().copy_from_slice(&[1, 2, 3, 4]);
    let length = |view: Option<libnccl::DeviceSlice<'_, u8>>| view.map(|view| view.len());
    assert_eq!(length(buffer.get(..)), Some(4));
    assert_eq!(length(buffer.get(4..)), Some(0));
    assert_eq!(length(buffer.get(1..=2)), Some(2));
    assert_eq!(length(buffer.get(..5)), None);
    assert_eq!(length(buffer.get(..=usize::MAX)), None);
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = 3..2;
    assert_eq!(length(buffer.get(reversed)), None);
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    let mut two = [0; 2];
    comm.all_reduce(buffer.get(1..3).unwrap(), &mut two, ReduceOp::Sum, STREAM).unwrap();
    assert_eq!(two, [2, 3]);
    comm.broadcast(&two, buffer.get_mut(2..).unwrap(), 0, STREAM).unwrap();
    assert_eq!(buffer.as_slice(), Some(&[1, 2, 2, 3][..]));
    fn is_send_and_sync<T: Send + Sync>(_: &T) {}
    is_send_and_sync(&buffer);
}

#[test]
fn registrations_end_before_memory_in_every_order() {
    let (nccl, comm) = device();
    let buffer = nccl.alloc::<f32>(8).unwrap();
    let registration = comm.register(&buffer).unwrap();
    assert_eq!(registration.as_raw().addr(), HANDLE);
    drop(registration);
    drop(buffer);
    let expected = ["alloc(32)", "register(32)", "deregister(0x1230)", "free"];
    assert_eq!(calls(), expected);

    let buffer = nccl.alloc::<f32>(8).unwrap();
    let registration = comm.register(&buffer).unwrap();
    drop(buffer);
    registration.deregister().unwrap();
    assert_eq!(calls(), expected);

    let buffer = nccl.alloc::<f32>(8).unwrap();
    let registration = comm.register(&buffer).unwrap();
    assert_eq!(text(buffer.free()), "free: the memory is still registered");
    drop(registration);
    assert_eq!(calls(), expected);

    // In a group, and during a panic.
    let buffer = nccl.alloc::<f32>(8).unwrap();
    let mut other = nccl.alloc::<f32>(8).unwrap();
    let mut registration = Some(comm.register(&buffer).unwrap());
    nccl.group(|g| {
        g.all_reduce_in_place(&comm, &mut other, ReduceOp::Sum, STREAM)?;
        drop(registration.take());
        Ok(())
    })
    .unwrap();
    assert_eq!(calls(), ["alloc(32)", "alloc(32)", "register(32)", "deregister(0x1230)"]);
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let _registration = comm.register(&buffer).unwrap();
        panic!("with a registration");
    }));
    assert_eq!(calls(), ["register(32)", "deregister(0x1230)"]);
}

#[test]
fn what_cannot_be_deregistered_is_never_freed() {
    let (nccl, comm) = device();
    let registered = || -> (NcclBuffer<f32>, Registration<'_>) {
        let buffer = nccl.alloc::<f32>(8).unwrap();
        let registration = comm.register(&buffer).unwrap();
        calls();
        (buffer, registration)
    };
    // Work in flight.
    let (mut buffer, registration) = registered();
    sum(&comm, &mut buffer);
    assert!(
        text(registration.deregister()).starts_with("deregister: work that uses the memory may not have")
    );
    // SAFETY: the table's work runs at once.
    unsafe { buffer.assume_idle() };
    drop(buffer);
    assert!(calls().is_empty());
    // A refusal.
    for code in CODES {
        let (buffer, registration) = registered();
        let error = failing("deregister", code, || registration.deregister()).unwrap_err();
        assert!(matches!(error, Error::Nccl { call: "ncclCommDeregister", .. }), "{error}");
        drop(buffer);
        assert_eq!(calls(), ["deregister(0x1230)"]);
        let buffer = nccl.alloc::<f32>(8).unwrap();
        let error = failing("register", code, || comm.register(&buffer).map(drop)).unwrap_err();
        assert!(matches!(error, Error::Nccl { call: "ncclCommRegister", .. }), "{error}");
        drop(buffer);
        assert_eq!(calls(), ["alloc(32)", "register(32)", "free"]);
    }
    // Forgotten.
    let (buffer, registration) = registered();
    std::mem::forget(registration);
    drop(buffer);
    assert!(calls().is_empty());
    // No use for it.
    HANDLES.set((0, 0));
    let (buffer, registration) = registered();
    registration.deregister().unwrap();
    drop(buffer);
    assert_eq!(calls(), ["free"]);
    // Gone with the communicator.
    HANDLES.set((HANDLE, WINDOW));
    let (buffer, registration) = registered();
    comm.abort_handle().abort().unwrap();
    registration.deregister().unwrap();
    drop(buffer);
    assert_eq!(calls(), ["abort", "free"]);
}

#[test]
fn windows() {
    let (nccl, comm) = device();
    let flags = WindowFlags::COLL_SYMMETRIC | WindowFlags::STRICT_ORDERING;
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let window = comm.register_window(&mut buffer, flags).unwrap();
    assert_eq!((window.as_raw().addr(), window.len(), window.is_active()), (WINDOW, 8, true));
    assert_eq!(window.user_ptr().unwrap().addr(), 0x1000);
    sum(&comm, &mut buffer);
    // SAFETY: the table's work runs at once.
    unsafe { buffer.assume_idle() };
    drop(buffer);
    window.deregister().unwrap();
    assert_eq!(calls(), ["alloc(32)", "window(32, 3)", "user_ptr(0x4560)", "window_end(0x4560)", "free"]);

    // Other ranks may use it as long as nobody says that they do not.
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    drop(comm.register_window(&mut buffer, WindowFlags::DEFAULT).unwrap());
    // SAFETY: as above.
    unsafe { buffer.assume_idle() };
    drop(buffer);
    assert_eq!(calls(), ["alloc(32)", "window(32, 0)"]);

    // A system without windows.
    HANDLES.set((0, 0));
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let window = comm.register_window(&mut buffer, WindowFlags::DEFAULT).unwrap();
    assert!(!window.is_active() && window.user_ptr().unwrap().is_null());
    let put = comm.put_signal(&buffer, 0, window.at(0), Signal::default(), STREAM);
    assert_eq!(text(put), "put_signal: the window is not active");
    drop(window);
    // SAFETY: as above.
    unsafe { buffer.assume_idle() };
    drop(buffer);
    assert_eq!(calls(), ["alloc(32)", "window(32, 0)", "free"]);
}

#[test]
fn every_error_of_a_window() {
    let (nccl, comm) = device();
    for code in CODES {
        let mut buffer = nccl.alloc::<f32>(8).unwrap();
        let error =
            failing("window", code, || comm.register_window(&mut buffer, WindowFlags::DEFAULT).map(drop));
        assert!(matches!(error, Err(Error::Nccl { call: "ncclCommWindowRegister", .. })), "{error:?}");
        drop(buffer);
        assert_eq!(calls(), ["alloc(32)", "window(32, 0)", "free"]);

        let mut buffer = nccl.alloc::<f32>(8).unwrap();
        let window = comm.register_window(&mut buffer, WindowFlags::DEFAULT).unwrap();
        let error = failing("user_ptr", code, || window.user_ptr().map(drop)).unwrap_err();
        assert_eq!(error.code().map(ResultCode::as_raw), Some(ncclResult_t(code)));
        // SAFETY: there is no work.
        unsafe { buffer.assume_idle() };
        let error = failing("window_end", code, || window.deregister()).unwrap_err();
        assert!(matches!(error, Error::Nccl { call: "ncclCommWindowDeregister", .. }), "{error}");
        drop(buffer);
        assert_eq!(calls(), ["alloc(32)", "window(32, 0)", "user_ptr(0x4560)", "window_end(0x4560)"]);
    }
    MISALIGNED.set(8);
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let problem = text(comm.register_window(&mut buffer, WindowFlags::DEFAULT));
    assert!(problem.ends_with("008 is not a multiple of 4096 bytes"), "{problem}");
}

#[test]
fn window_flags() {
    let (nccl, comm) = device();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    for (flag, name) in
        [(WindowFlags::GIN_ONLY, "NCCL_WIN_GIN_ONLY"), (WindowFlags::CFT_COUNTED, "NCCL_WIN_CFT_COUNTED")]
    {
        let problem = text(comm.register_window(&mut buffer, flag | WindowFlags::COLL_SYMMETRIC));
        let expected = format!("register_window: {name} cannot be combined with NCCL_WIN_COLL_SYMMETRIC");
        assert_eq!(problem, expected);
    }
    for (flag, bits, before, since) in [
        (WindowFlags::DEFAULT, 0, 0, (2, 27, 3)),
        (WindowFlags::COLL_SYMMETRIC, 1, 0, (2, 27, 3)),
        (WindowFlags::STRICT_ORDERING, 2, 22903, (2, 29, 7)),
        (WindowFlags::GIN_ONLY, 4, 23102, (2, 32, 3)),
        (WindowFlags::CFT_COUNTED, 8, 23102, (2, 32, 3)),
    ] {
        assert_eq!(flag.bits(), bits);
        let (major, minor, patch) = since;
        VERSION.set(c_int::try_from(Version::new(major, minor, patch).code()).unwrap());
        drop(device().1.register_window(&mut buffer, flag).unwrap());
        if before > 0 {
            VERSION.set(before);
            let error = device().1.register_window(&mut buffer, flag).map(drop).unwrap_err();
            let Error::Unsupported { since, .. } = error else { panic!("{error}") };
            assert_eq!(since, Version::new(major, minor, patch));
        }
    }
}

#[test]
fn a_group_registers_windows_at_its_end() {
    let nccl = nccl(TABLE);
    let comms = nccl.init_all(&[0, 1]).unwrap();
    let mut buffers = [nccl.alloc::<f32>(8).unwrap(), nccl.alloc::<f32>(8).unwrap()];
    let flags = WindowFlags::COLL_SYMMETRIC;
    let windows: Vec<Window<'_, f32>> = nccl
        .group(|g| {
            let windows = comms.iter().zip(&mut buffers).map(|(comm, b)| g.register_window(comm, b, flags));
            let windows: Result<Vec<_>> = windows.collect();
            assert!(windows.iter().flatten().all(|window| !window.is_active()));
            windows
        })
        .unwrap();
    assert!(windows.iter().all(Window::is_active));
    // SAFETY: there is no work.
    buffers.iter_mut().for_each(|buffer| unsafe { buffer.assume_idle() });
    drop(windows);
    let end = "window_end(0x4560)";
    assert_eq!(calls(), ["alloc(32)", "alloc(32)", "window(32, 1)", "window(32, 1)", end, end]);

    // Dropped before there is one: the memory stays.
    nccl.group(|g| g.register_window(&comms[0], &mut buffers[0], flags).map(drop)).unwrap();
    // A group that fails.
    let error = nccl.group(|g| {
        g.register_window(&comms[1], &mut buffers[1], flags)?;
        Err::<(), _>(Error::from(libnccl::LoadError::NoBackend))
    });
    assert!(error.is_err());
    drop(buffers);
    assert_eq!(calls(), ["window(32, 1)", "window(32, 1)"]);
}

#[test]
fn host_memory_is_no_slice_while_it_is_a_window() {
    let (nccl, comm) = host();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let window = comm.register_window(&mut buffer, WindowFlags::DEFAULT).unwrap();
    assert!(buffer.as_slice().is_none() && buffer.as_mut_slice().is_none());
    sum(&comm, &mut buffer);
    // SAFETY: no other rank uses it.
    unsafe { buffer.assume_idle() };
    drop(window);
    assert_eq!(buffer.as_slice(), Some(&[0.0; 8][..]));
    let window = comm.register_window(&mut buffer, WindowFlags::DEFAULT).unwrap();
    comm.abort_handle().abort().unwrap();
    // SAFETY: as above.
    unsafe { buffer.assume_idle() };
    drop(window);
    assert!(buffer.as_mut_slice().is_some());
    drop(buffer);
    let window = "window(32, 0)";
    assert_eq!(calls(), ["alloc(32)", window, "window_end(0x4560)", window, "abort", "free"]);
}

/// Other ranks may write it, whatever becomes of this one's communicator.
#[test]
fn host_memory_that_was_a_window_is_kept_until_someone_says_that_it_is_idle() {
    let (nccl, comm) = host();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let window = comm.register_window(&mut buffer, WindowFlags::DEFAULT).unwrap();
    let refused = text(window.deregister());
    assert!(refused.starts_with("deregister: work that uses the memory may not have run yet"), "{refused}");
    assert!(buffer.as_slice().is_none());
    drop(buffer);
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let window = comm.register_window(&mut buffer, WindowFlags::DEFAULT).unwrap();
    comm.abort_handle().abort().unwrap();
    drop((window, buffer));
    assert_eq!(calls(), ["alloc(32)", "window(32, 0)", "alloc(32)", "window(32, 0)", "abort"]);
}

#[test]
fn one_sided_operations() {
    let nccl = nccl(TABLE);
    let comms = nccl.init_all(&[0, 1]).unwrap();
    let comm = &comms[0];
    let mut buffer = nccl.alloc::<f64>(8).unwrap();
    let window = comm.register_window(&mut buffer, WindowFlags::COLL_SYMMETRIC).unwrap();
    let mut elsewhere = nccl.alloc::<f64>(8).unwrap();
    let elsewhere = comms[1].register_window(&mut elsewhere, WindowFlags::COLL_SYMMETRIC).unwrap();
    calls();
    let (first, second) = (Signal::default(), Signal { index: 2, context: 3 });
    let waits =
        [WaitSignal { count: 4, peer: 1, signal: second }, WaitSignal { count: 1, peer: 0, signal: first }];
    comm.put_signal(buffer.get(..3).unwrap(), 1, window.at(5), second, STREAM).unwrap();
    comm.signal(1, second, STREAM).unwrap();
    comm.wait_signal(&waits, STREAM).unwrap();
    let put = "put(3, 8, 1, 0x4560, 40, 2, 3, 0)";
    assert_eq!(calls(), [put, "signal(1, 2, 3, 0)", "wait([(4, 1, 2, 3), (1, 0, 0, 0)])"]);
    nccl.group(|g| {
        g.put_signal(comm, &buffer, 1, window.at(0), first, STREAM)?;
        g.signal(comm, 0, first, STREAM)?;
        g.wait_signal(comm, &waits[1..], STREAM)
    })
    .unwrap();
    let put = "put(8, 8, 1, 0x4560, 0, 0, 0, 0)";
    assert_eq!(calls(), [put, "signal(0, 0, 0, 0)", "wait([(1, 0, 0, 0)])"]);

    let put = |peer, place, signal| text(comm.put_signal(&buffer, peer, place, signal, STREAM));
    let wait = |wait: WaitSignal| text(comm.wait_signal(&[wait], STREAM));
    let far = Signal { index: 1 << 31, context: 0 };
    for (problem, expected) in [
        (put(2, window.at(0), first), "put_signal: peer 2 is not below 2, the communicator's size"),
        (put(1, window.at(1), first), "put_signal: 8 elements from 1 on are beyond the window's 8"),
        (
            put(1, window.at(usize::MAX), first),
            "put_signal: 8 elements from 18446744073709551615 on are beyond the window's 8",
        ),
        (put(1, elsewhere.at(0), first), "put_signal: the window belongs to another communicator"),
        (put(1, window.at(0), far), "put_signal: signal 2147483648 is beyond 2147483647"),
        (text(comm.signal(5, first, STREAM)), "signal: peer 5 is not below 2, the communicator's size"),
        (
            text(comm.signal(1, Signal { index: 0, context: u32::MAX }, STREAM)),
            "signal: context 4294967295 is beyond 2147483647",
        ),
        (text(comm.wait_signal(&[], STREAM)), "wait_signal: no signals; expected at least one"),
        (
            wait(WaitSignal { count: 0, peer: 0, signal: first }),
            "wait_signal: the count is 0; expected at least 1",
        ),
        (
            wait(WaitSignal { count: 1, peer: 9, signal: first }),
            "wait_signal: peer 9 is not below 2, the communicator's size",
        ),
    ] {
        assert_eq!(problem, expected);
    }
    let options = libnccl::CollectiveConfig::new();
    assert!(text(comm.operations().with(&options).signal(1, first, STREAM)).contains("takes no options"));
    assert!(calls().is_empty());
    for code in CODES {
        let error =
            failing("put", code, || comm.put_signal(&buffer, 1, window.at(0), first, STREAM)).unwrap_err();
        assert!(matches!(error, Error::Nccl { call: "ncclPutSignal", .. }), "{error}");
        let error = failing("signal", code, || comm.signal(1, first, STREAM)).unwrap_err();
        assert!(matches!(error, Error::Nccl { call: "ncclSignal", .. }), "{error}");
        let error = failing("wait", code, || comm.wait_signal(&waits, STREAM)).unwrap_err();
        assert!(matches!(error, Error::Nccl { call: "ncclWaitSignal", .. }), "{error}");
    }
}

#[test]
fn functions_that_are_absent() {
    let nccl = nccl(Functions {
        ncclMemAlloc: None,
        ncclCommRegister: None,
        ncclCommWindowRegister: None,
        ncclWinGetUserPtr: None,
        ncclPutSignal: None,
        ncclSignal: None,
        ncclWaitSignal: None,
        ..TABLE
    });
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    let unsupported = |result: Result<()>, name| match result {
        Err(Error::Unsupported { function, .. }) => assert_eq!(function, name),
        other => panic!("{name}: {other:?}"),
    };
    let (other, other_comm) = device();
    let mut buffer = other.alloc::<f32>(8).unwrap();
    unsupported(nccl.alloc::<f32>(1).map(drop), "ncclMemAlloc");
    unsupported(comm.barrier(STREAM), "ncclMemAlloc");
    unsupported(comm.register(&buffer).map(drop), "ncclCommRegister");
    unsupported(comm.register_window(&mut buffer, WindowFlags::DEFAULT).map(drop), "ncclCommWindowRegister");
    unsupported(comm.signal(0, Signal::default(), STREAM), "ncclSignal");
    let wait = [WaitSignal { count: 1, peer: 0, signal: Signal::default() }];
    unsupported(comm.wait_signal(&wait, STREAM), "ncclWaitSignal");
    drop(other_comm);
}

#[test]
fn host_memory_needs_no_promises_but_for_windows() {
    let (nccl, comm) = host();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let registration = comm.register(&buffer).unwrap();
    sum(&comm, &mut buffer);
    registration.deregister().unwrap();
    assert_eq!(buffer.as_slice(), Some(&[0.0; 8][..]));
    buffer.free().unwrap();
    assert_eq!(calls(), ["alloc(32)", "register(32)", "deregister(0x1230)", "free"]);
    // A GPU's buffer, and a host's communicator.
    let elsewhere = device().0.alloc::<f32>(8).unwrap();
    let problem = "register: a buffer is in device memory; the communicator works on host memory";
    assert_eq!(text(comm.register(&elsewhere)), problem);
}

#[test]
fn a_barrier_waits_for_every_rank() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    let comms = libnccl_cpu::nccl().init_all(&[0, 1, 2]).unwrap();
    let come = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for comm in comms {
            let come = &come;
            scope.spawn(move || {
                for round in 1..=20 {
                    if comm.rank() == round % 3 {
                        std::thread::sleep(std::time::Duration::from_millis(2));
                    }
                    come.fetch_add(1, SeqCst);
                    comm.barrier(STREAM).unwrap();
                    assert_eq!(come.load(SeqCst), 3 * round);
                    comm.barrier(STREAM).unwrap();
                }
            });
        }
    });
    let nccl = libnccl_cpu::nccl();
    let comms = nccl.init_all(&[0, 1]).unwrap();
    nccl.group(|g| comms.iter().try_for_each(|comm| g.barrier(comm, STREAM))).unwrap();
    assert!(matches!(nccl.group(|_| comms[0].barrier(STREAM)), Err(Error::InvalidUsage { .. })));
}

#[test]
fn a_barriers_memory_is_the_communicators() {
    let (_nccl, comm) = device();
    comm.barrier(STREAM).unwrap();
    comm.barrier(STREAM).unwrap();
    drop(comm);
    assert_eq!(calls(), ["alloc(1)", "abort"], "work may be in flight");
    let (_nccl, comm) = host();
    comm.barrier(STREAM).unwrap();
    drop(comm);
    assert_eq!(calls(), ["alloc(1)", "free"]);
    let (_nccl, comm) = device();
    for code in CODES {
        let error = failing("alloc", code, || comm.barrier(STREAM)).unwrap_err();
        assert_eq!(error.code().map(ResultCode::as_raw), Some(ncclResult_t(code)));
    }
}

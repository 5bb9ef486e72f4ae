//! Owned memory, registrations, windows, one-sided operations and the barrier: the C calls that they make, over a fake
//! library, and their results over the CPU backend.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use libnccl::buffer::MemorySpace;
use libnccl::error::ResultCode;
use libnccl::sys::{Functions, ncclResult_t};
use libnccl::window::{Registration, Signal, WaitSignal, Window, WindowFlags};
use libnccl::{
    CallOptions, Communicator, Element, Error, Nccl, NcclBuffer, PreMulSum, ReduceOp, Result, StreamRef,
    Version,
};
use libnccl_test_support::fake_nccl::{FakeNccl, REGISTRATION, USER_POINTER, WINDOW};

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

/// The calls for a buffer of 32 bytes.
const ALLOC: &str = "ncclMemAlloc(&, 32)";
const FREE: &str = "ncclMemFree(memory)";
const REGISTER: &str = "ncclCommRegister(comm0, memory, 32, &)";
const DEREGISTER: &str = "ncclCommDeregister(comm0, 0x1230)";
const REGISTER_WINDOW: &str = "ncclCommWindowRegister(comm0, memory, 32, &, 0)";
const DEREGISTER_WINDOW: &str = "ncclCommWindowDeregister(comm0, 0x4560)";
const USER_PTR: &str = "ncclWinGetUserPtr(comm0, 0x4560, &)";
const ABORT: &str = "ncclCommAbort(comm0)";

/// Takes the log, without the calls that these tests are not about.
fn calls(fake: &FakeNccl) -> Vec<String> {
    const OTHERS: [&str; 12] = [
        "ncclAllReduce",
        "ncclBroadcast",
        "ncclCommCount",
        "ncclCommCuDevice",
        "ncclCommDestroy",
        "ncclCommGetAsyncError",
        "ncclCommInitAll",
        "ncclCommUserRank",
        "ncclGetVersion",
        "ncclGroupEnd",
        "ncclGroupStart",
        "ncclParamGetParameter",
    ];
    let mut log = fake.take_log();
    log.retain(|call| call.split('(').next().is_some_and(|function| !OTHERS.contains(&function)));
    log
}

fn register_window<T: Element>(
    comm: &Communicator,
    buffer: &mut NcclBuffer<T>,
    flags: WindowFlags,
) -> Result<Window<T>> {
    // SAFETY: the fake accesses no memory.
    unsafe { comm.register_window(buffer, flags) }
}

/// Opens a library, with the only communicator of a job.
fn open(fake: &FakeNccl) -> (Nccl, Communicator) {
    fake.set_size_and_rank(1, 0);
    let nccl = fake.nccl();
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    (nccl, comm)
}

/// Opens a library that works on a GPU's memory.
fn device() -> (FakeNccl, Nccl, Communicator) {
    let fake = FakeNccl::new();
    let (nccl, comm) = open(&fake);
    assert_eq!(nccl.memory_space(), MemorySpace::Device);
    (fake, nccl, comm)
}

/// Opens a library that works on the host's memory.
fn host() -> (FakeNccl, Nccl, Communicator) {
    let fake = FakeNccl::new();
    fake.set_host_memory(true);
    let (nccl, comm) = open(&fake);
    assert_eq!(nccl.memory_space(), MemorySpace::Host);
    (fake, nccl, comm)
}

/// Opens a library with both communicators of a job.
fn pair() -> (FakeNccl, Nccl, Vec<Communicator>) {
    let fake = FakeNccl::new();
    fake.set_size_and_rank(2, 0);
    let nccl = fake.nccl();
    let comms = nccl.init_all(&[0, 1]).unwrap();
    (fake, nccl, comms)
}

fn failing<R>(fake: &FakeNccl, function: &'static str, code: u32, act: impl FnOnce() -> R) -> R {
    fake.answer(function, code);
    let result = act();
    fake.repair();
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
fn buffer_is_allocated_and_freed_once() {
    let (fake, nccl, _comm) = device();
    let buffer = nccl.alloc::<f64>(3).unwrap();
    assert_eq!((buffer.len(), buffer.is_empty(), buffer.as_slice()), (3, false, None));
    drop(buffer);
    assert_eq!(calls(&fake), ["ncclMemAlloc(&, 24)", FREE]);
    nccl.alloc::<i8>(5).unwrap().free().unwrap();
    assert_eq!(calls(&fake), ["ncclMemAlloc(&, 5)", FREE]);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _buffer = nccl.alloc::<i8>(5).unwrap();
        panic!("with a buffer");
    }));
    assert!(unwound.is_err());
    assert_eq!(calls(&fake), ["ncclMemAlloc(&, 5)", FREE]);
}

/// As when the program loads CUDA.
#[test]
fn memory_space_of_a_buffer_stays_when_that_of_the_library_changes() {
    let fake = FakeNccl::new();
    fake.set_host_memory(true);
    let (nccl, comm) = open(&fake);
    let mut buffers = [8, 0].map(|length| nccl.alloc::<f32>(length).unwrap());
    sum(&comm, &mut buffers[0]);
    let registration = comm.register(&buffers[0]).unwrap();
    calls(&fake);
    fake.set_host_memory(false);
    assert_eq!(nccl.memory_space(), MemorySpace::Device);
    assert_eq!(nccl.alloc::<f32>(8).unwrap().as_slice(), None);
    calls(&fake);
    registration.deregister().unwrap();
    sum(&comm, &mut buffers[0]);
    for buffer in &buffers {
        assert_eq!(buffer.as_slice(), Some(&[0.0; 8][..buffer.len()]));
    }
    let [buffer, _] = buffers;
    buffer.free().unwrap();
    assert_eq!(calls(&fake), [DEREGISTER, FREE]);
}

/// Another thread may load CUDA during the allocation.
#[test]
fn memory_space_that_changes_during_an_allocation_is_of_the_memory() {
    static HAS_CUDA: AtomicBool = AtomicBool::new(false);
    static FREED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn parameter(
        key: *const c_char,
        value: *mut *const c_char,
        length: *mut c_int,
    ) -> ncclResult_t {
        if HAS_CUDA.load(SeqCst) {
            return ncclResult_t::ncclInvalidArgument;
        }
        // SAFETY: the same contract.
        unsafe { libnccl_cpu::TABLE.ncclParamGetParameter.unwrap()(key, value, length) }
    }
    unsafe extern "C" fn allocate(memory: *mut *mut c_void, size: usize) -> ncclResult_t {
        HAS_CUDA.store(true, SeqCst);
        // SAFETY: the same contract.
        unsafe { libnccl_cpu::TABLE.ncclMemAlloc.unwrap()(memory, size) }
    }
    unsafe extern "C" fn free(memory: *mut c_void) -> ncclResult_t {
        FREED.fetch_add(1, SeqCst);
        // SAFETY: the same contract.
        unsafe { libnccl_cpu::TABLE.ncclMemFree.unwrap()(memory) }
    }
    let functions = Functions {
        ncclParamGetParameter: Some(parameter),
        ncclMemAlloc: Some(allocate),
        ncclMemFree: Some(free),
        ..libnccl_cpu::TABLE
    };
    // SAFETY: functions of the CPU backend.
    let nccl = unsafe { Nccl::from_table("a library that gets CUDA", functions) }.unwrap();
    let buffer = nccl.alloc::<f32>(8).unwrap();
    assert_eq!(buffer.as_slice(), None);
    assert_eq!(FREED.load(SeqCst), 1, "the memory that may be host memory");
}

#[test]
fn zero_length_allocates_nothing_and_overflow_is_an_error() {
    let (fake, nccl, comm) = device();
    let mut empty = nccl.alloc::<f32>(0).unwrap();
    assert_eq!((empty.len(), empty.get(..).map(|view| view.len())), (0, Some(0)));
    sum(&comm, &mut empty);
    assert_eq!(text(comm.register(&empty)), "register: the buffer is empty; expected at least one element");
    assert!(text(register_window(&comm, &mut empty, WindowFlags::DEFAULT)).contains("is empty"));
    empty.free().unwrap();
    let much = usize::MAX / 4;
    let problem = format!("alloc: {much} elements of 8 bytes exceed isize::MAX bytes");
    assert_eq!(text(nccl.alloc::<f64>(much)), problem);
    assert!(matches!(nccl.alloc::<i8>(usize::MAX), Err(Error::InvalidArgument { .. })));
    assert!(calls(&fake).is_empty());
    assert_eq!(libnccl_cpu::nccl().alloc::<i64>(0).unwrap().as_slice(), Some(&[][..]));
}

#[test]
fn misaligned_memory_is_invalid_usage() {
    let (fake, nccl, comm) = device();
    fake.misalign_memory(1);
    assert!(matches!(nccl.alloc::<f32>(1), Err(Error::InvalidUsage { call: "alloc", .. })));
    fake.misalign_memory(8);
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let problem = text(register_window(&comm, &mut buffer, WindowFlags::DEFAULT));
    assert!(problem.ends_with("008 is not a multiple of 4096 bytes"), "{problem}");
}

#[test]
fn buffer_with_work_in_flight_is_not_freed() {
    let (fake, nccl, comm) = device();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    sum(&comm, &mut buffer);
    drop(buffer);
    assert_eq!(calls(&fake), [ALLOC]);
    let problem = "free: work that uses the memory may not have run yet; wait for it, then call assume_idle";
    let buffer = nccl.alloc::<f32>(8).unwrap();
    comm.broadcast(&buffer, &mut nccl.alloc(8).unwrap(), 0, STREAM).unwrap();
    assert_eq!(text(buffer.free()), problem);
    assert_eq!(calls(&fake), [ALLOC, ALLOC]);
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    nccl.group(|g| comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, g.stream(STREAM))).unwrap();
    // SAFETY: the fake does no work.
    unsafe { buffer.assume_idle() };
    let view = buffer.get_mut(2..=3).unwrap();
    assert_eq!(view.len(), 2);
    comm.all_reduce_in_place(view, ReduceOp::Sum, STREAM).unwrap();
    // SAFETY: as above.
    unsafe { buffer.assume_idle() };
    drop(buffer);
    assert_eq!(calls(&fake), [ALLOC, FREE]);
}

/// A slice is plain memory: the operation that uses it cannot mark the buffer.
#[test]
fn making_a_slice_of_a_buffer_marks_it_busy() {
    let (fake, nccl, comm) = device();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let slice = libnccl::SliceMut::from(&mut buffer);
    comm.all_reduce_in_place(slice, ReduceOp::Sum, STREAM).unwrap();
    drop(buffer);
    let buffer = nccl.alloc::<f32>(8).unwrap();
    comm.send(libnccl::Slice::from(&buffer), 0, STREAM).unwrap();
    drop(buffer);
    assert_eq!(calls(&fake), [ALLOC, ALLOC, "ncclSend(memory, 8, Float32, 0, comm0, null)"]);
}

#[test]
fn part_that_is_out_of_bounds_does_not_mark_the_buffer_busy() {
    let (fake, nccl, _comm) = device();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    assert!(buffer.get(9..).is_none());
    assert!(buffer.get_mut(..9).is_none());
    drop(buffer);
    assert_eq!(calls(&fake), [ALLOC, FREE]);
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    assert!(buffer.get_mut(..8).is_some());
    drop(buffer);
    assert_eq!(calls(&fake), [ALLOC]);
}

#[test]
fn buffer_views_cover_the_requested_range() {
    let nccl = libnccl_cpu::nccl();
    let mut buffer = nccl.alloc::<u8>(4).unwrap();
    buffer.as_mut_slice().unwrap().copy_from_slice(&[1, 2, 3, 4]);
    let length = |view: Option<libnccl::Slice<'_, u8>>| view.map(|view| view.len());
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
fn registration_in_any_drop_order_ends_before_its_memory() {
    let (fake, nccl, comm) = device();
    let buffer = nccl.alloc::<f32>(8).unwrap();
    let registration = comm.register(&buffer).unwrap();
    assert_eq!(registration.as_raw().addr(), REGISTRATION);
    drop(registration);
    drop(buffer);
    let expected = [ALLOC, REGISTER, DEREGISTER, FREE];
    assert_eq!(calls(&fake), expected);

    let buffer = nccl.alloc::<f32>(8).unwrap();
    let registration = comm.register(&buffer).unwrap();
    drop(buffer);
    registration.deregister().unwrap();
    assert_eq!(calls(&fake), expected);

    let buffer = nccl.alloc::<f32>(8).unwrap();
    let registration = comm.register(&buffer).unwrap();
    assert_eq!(text(buffer.free()), "free: the memory is still registered");
    drop(registration);
    assert_eq!(calls(&fake), expected);

    // In a group, and during a panic.
    let buffer = nccl.alloc::<f32>(8).unwrap();
    let mut other = nccl.alloc::<f32>(8).unwrap();
    let mut registration = Some(comm.register(&buffer).unwrap());
    nccl.group(|g| {
        comm.all_reduce_in_place(&mut other, ReduceOp::Sum, g.stream(STREAM))?;
        drop(registration.take());
        Ok(())
    })
    .unwrap();
    assert_eq!(calls(&fake), [ALLOC, ALLOC, REGISTER, DEREGISTER]);
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let _registration = comm.register(&buffer).unwrap();
        panic!("with a registration");
    }));
    assert_eq!(calls(&fake), [REGISTER, DEREGISTER]);
}

#[test]
fn buffer_that_stays_registered_is_never_freed() {
    let (fake, nccl, comm) = device();
    let registered = || -> (NcclBuffer<f32>, Registration) {
        let buffer = nccl.alloc::<f32>(8).unwrap();
        let registration = comm.register(&buffer).unwrap();
        calls(&fake);
        (buffer, registration)
    };
    // Work in flight.
    let (mut buffer, registration) = registered();
    sum(&comm, &mut buffer);
    assert!(
        text(registration.deregister()).starts_with("deregister: work that uses the memory may not have")
    );
    // SAFETY: the fake does no work.
    unsafe { buffer.assume_idle() };
    drop(buffer);
    assert!(calls(&fake).is_empty());
    // NCCL refuses.
    for code in CODES {
        let (buffer, registration) = registered();
        failing(&fake, "ncclCommDeregister", code, || registration.deregister()).unwrap_err();
        drop(buffer);
        assert_eq!(calls(&fake), [DEREGISTER]);
        let buffer = nccl.alloc::<f32>(8).unwrap();
        failing(&fake, "ncclCommRegister", code, || comm.register(&buffer).map(drop)).unwrap_err();
        drop(buffer);
        assert_eq!(calls(&fake), [ALLOC, REGISTER, FREE]);
    }
    // Forgotten.
    let (buffer, registration) = registered();
    std::mem::forget(registration);
    drop(buffer);
    assert!(calls(&fake).is_empty());
    // NCCL succeeds with a null handle.
    fake.set_registers(false);
    let (buffer, registration) = registered();
    registration.deregister().unwrap();
    drop(buffer);
    assert_eq!(calls(&fake), [FREE]);
}

/// NCCL ends the registrations of all ranks of a process together, when the last of these ranks ends.
#[test]
fn registration_of_aborted_rank_keeps_its_memory() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    let comms = nccl.init_all(&[0, 1]).unwrap();
    let mut buffers = [(); 3].map(|()| nccl.alloc::<f32>(8).unwrap());
    let registrations = [comms[0].register(&buffers[0]).unwrap(), comms[0].register(&buffers[1]).unwrap()];
    // SAFETY: the fake has no other ranks.
    let window = unsafe { comms[0].register_window(&mut buffers[2], WindowFlags::DEFAULT) }.unwrap();
    // SAFETY: the fake does no work.
    unsafe { buffers[2].assume_idle() };
    comms[0].abort_handle().abort().unwrap();
    let [first, second] = registrations;
    assert!(matches!(first.deregister(), Err(Error::Aborted { call: "deregister" })));
    assert!(matches!(window.deregister(), Err(Error::Aborted { call: "deregister" })));
    drop(second);
    drop(buffers);
    assert_eq!(fake.violations(), [] as [String; 0]);
}

#[test]
fn memory_of_the_caller_that_is_null_or_empty_is_not_registered() {
    let (fake, _nccl, comm) = device();
    for (address, bytes, problem) in [
        (0, 64, "register_raw: the pointer is null"),
        (0x7000, 0, "register_raw: the size is 0; expected at least one byte"),
    ] {
        // SAFETY: the fake accesses no memory.
        let registered = unsafe { comm.register_raw(std::ptr::without_provenance_mut(address), bytes) };
        assert_eq!(text(registered.map(drop)), problem);
    }
    assert!(calls(&fake).is_empty());
}

/// A registration, a window and a reduction that do not borrow their communicator, with the buffers of the first two.
struct Owned {
    registration: Registration,
    window: Window<f32>,
    halves: PreMulSum<'static, f32>,
    buffers: [NcclBuffer<f32>; 2],
}

impl Owned {
    fn new(fake: &FakeNccl, nccl: &Nccl, comm: &Communicator) -> Self {
        let mut buffers = [(); 2].map(|()| nccl.alloc::<f32>(8).unwrap());
        let registration = comm.register(&buffers[0]).unwrap();
        let window = register_window(comm, &mut buffers[1], WindowFlags::DEFAULT).unwrap();
        let halves = comm.pre_mul_sum(0.5).unwrap();
        // SAFETY: the fake does no work, and there is no other rank.
        unsafe { buffers[1].assume_idle() };
        calls(fake);
        Self { registration, window, halves, buffers }
    }
}

const END_REDUCTION: &str = "ncclRedOpDestroy(custom0, comm0)";

#[test]
fn owned_objects_end_on_any_thread_before_their_communicator() {
    for open in [device, host] {
        let (fake, nccl, comm) = open();
        let owned = Owned::new(&fake, &nccl, &comm);
        assert_eq!((owned.window.is_active(), owned.window.len()), (true, 8));
        comm.put_signal(&owned.buffers[1], 0, owned.window.at(0), Signal::default(), STREAM).unwrap();
        let mut sum = nccl.alloc::<f32>(8).unwrap();
        comm.all_reduce_in_place(&mut sum, &owned.halves, STREAM).unwrap();
        nccl.group(|g| comm.all_reduce_in_place(&mut sum, &owned.halves, g.stream(STREAM))).unwrap();
        let Owned { registration, window, halves, mut buffers } = owned;
        // SAFETY: the fake does no work.
        unsafe { buffers[1].assume_idle() };
        calls(&fake);
        let attached = fake.clone();
        std::thread::spawn(move || {
            attached.attach();
            drop((registration, halves));
            window.deregister().unwrap();
        })
        .join()
        .unwrap();
        drop(buffers);
        assert_eq!(calls(&fake), [DEREGISTER, END_REDUCTION, DEREGISTER_WINDOW, FREE, FREE]);
        drop((sum, comm));
        assert_eq!(fake.violations(), [] as [String; 0]);
    }
}

/// A way to end a communicator.
type Ending = fn(&Nccl, Communicator);

#[test]
fn owned_objects_after_the_end_of_their_communicator_do_not_use_it() {
    let endings: [(&str, Ending); 5] = [
        ("drop", |_, comm| drop(comm)),
        ("destroy", |_, comm| comm.destroy().unwrap()),
        ("abort", |_, comm| comm.abort().unwrap()),
        ("finalize and destroy", |_, comm| comm.finalize().unwrap().destroy().unwrap()),
        ("abort by a handle", |_, comm| comm.abort_handle().abort().unwrap()),
    ];
    for (name, end) in endings {
        for (open, frees) in [(device as fn() -> _, 0), (host, 2)] {
            let (fake, nccl, comm) = open();
            let owned = Owned::new(&fake, &nccl, &comm);
            end(&nccl, comm);
            calls(&fake);
            drop(owned);
            assert_eq!(calls(&fake), vec![FREE; frees], "{name}");
            assert_eq!(fake.violations(), [] as [String; 0], "{name}");
        }
    }
}

#[test]
fn owned_objects_of_a_communicator_in_use_end_after_its_call() {
    for (open, frees) in [(device as fn() -> _, 0), (host, 2)] {
        // In a group, on its thread and on another.
        let (fake, nccl, comm) = open();
        let mut other = nccl.alloc::<f32>(8).unwrap();
        let owned = Owned::new(&fake, &nccl, &comm);
        nccl.group(|g| {
            comm.all_reduce_in_place(&mut other, ReduceOp::Sum, g.stream(STREAM))?;
            let Owned { registration, window, halves, buffers } = owned;
            let problem = "deregister: the communicator is in use: in an open group, or by another thread";
            assert_eq!(text(registration.deregister()), problem);
            assert_eq!(text(window.deregister()), problem);
            std::thread::spawn(|| drop((halves, buffers))).join().unwrap();
            assert!(calls(&fake).is_empty());
            Ok(())
        })
        .unwrap();
        assert_eq!(calls(&fake), [DEREGISTER, DEREGISTER_WINDOW, END_REDUCTION, FREE, FREE]);
        // Memory that is busy when the object is dropped, and idle when the communicator is used again.
        let Owned { registration, window, halves, mut buffers } = Owned::new(&fake, &nccl, &comm);
        comm.put_signal(&buffers[1], 0, window.at(0), Signal::default(), STREAM).unwrap();
        drop(window);
        nccl.group(|g| {
            comm.all_reduce_in_place(&mut other, ReduceOp::Sum, g.stream(STREAM))?;
            // SAFETY: the fake does no work.
            unsafe { buffers[1].assume_idle() };
            drop(halves);
            Ok(())
        })
        .unwrap();
        drop((registration, buffers));
        let (log, second) = (calls(&fake), END_REDUCTION.replace("custom0", "custom1"));
        assert_eq!(log[1..], [DEREGISTER_WINDOW, &second, DEREGISTER, FREE, FREE], "{log:?}");
        // Given to other code, which has the windows and registrations with it.
        let owned = Owned::new(&fake, &nccl, &comm);
        let raw = comm.into_raw();
        drop(owned);
        // SAFETY: given up just before.
        let comm = unsafe { Communicator::from_raw(&nccl, raw) }.unwrap();
        // Finalized.
        let owned = Owned::new(&fake, &nccl, &comm);
        let finalized = comm.finalize().unwrap();
        let refused = text(owned.registration.deregister());
        assert_eq!(refused, "deregister: the communicator is finalized; it can only be aborted or destroyed");
        drop((owned.window, owned.halves, owned.buffers));
        let log = calls(&fake);
        assert!(!log.iter().any(|call| call.contains("Deregister") || call == FREE), "{log:?}");
        finalized.destroy().unwrap();
        assert_eq!(calls(&fake), vec![FREE; frees]);
        assert_eq!(fake.violations(), [] as [String; 0]);
    }
}

/// The threads meet in all orders: the drop may find the owner before its call, in it, or after it.
#[test]
fn memory_of_objects_dropped_during_calls_of_their_owner_is_freed() {
    const ROUNDS: usize = 300;
    let fake = FakeNccl::new();
    fake.set_host_memory(true);
    let (nccl, comm) = open(&fake);
    let mut value = [1_u32];
    let mut log = Vec::new();
    for _ in 0..ROUNDS {
        let Owned { registration, window, halves, buffers } = Owned::new(&fake, &nccl, &comm);
        let attached = fake.clone();
        let dropping = std::thread::spawn(move || {
            attached.attach();
            drop((registration, window, halves, buffers));
        });
        while !dropping.is_finished() {
            comm.all_reduce_in_place(&mut value, ReduceOp::Sum, STREAM).unwrap();
        }
        dropping.join().unwrap();
        log.append(&mut calls(&fake));
    }
    let count = |expected: &str| log.iter().filter(|call| call.starts_with(expected)).count();
    let ends = [DEREGISTER, DEREGISTER_WINDOW, "ncclRedOpDestroy("].map(count);
    assert_eq!((ends, count(FREE)), ([ROUNDS; 3], 2 * ROUNDS));
    comm.destroy().unwrap();
    assert_eq!(fake.violations(), [] as [String; 0]);
}

/// An owner that waits for another rank, and that times out while objects are dropped.
#[test]
fn objects_dropped_while_their_owner_waits_leave_no_memory_and_no_descriptors() {
    if !crate::own_process::is_own(
        module_path!(),
        "objects_dropped_while_their_owner_waits_leave_no_memory_and_no_descriptors",
    ) {
        return;
    }
    const ROUNDS: usize = 150;
    let nccl = libnccl_cpu::nccl();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let config = libnccl::Config::new().timeout(std::time::Duration::from_secs(60));
    let mut first = 0;
    for round in 0..ROUNDS {
        let id = nccl.unique_id().unwrap();
        let (nccl, config, id) = (&nccl, &config, &id);
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            scope.spawn(move || {
                let comm = nccl.communicator(2, 0, id).config(config).init().unwrap();
                let buffer = nccl.alloc::<u8>(1 << 20).unwrap();
                let registration = comm.register(&buffer).unwrap();
                let halves = comm.pre_mul_sum(0.5_f32).unwrap();
                sender.send((comm.abort_handle(), registration, halves, buffer)).unwrap();
                let received = comm.recv(&mut [0_u8], 1, STREAM);
                assert_eq!(received.is_ok(), round % 3 != 0, "{received:?}");
            });
            let comm = nccl.communicator(2, 1, id).config(config).init().unwrap();
            let (owner, registration, halves, buffer) = receiver.recv().unwrap();
            while owner.health() != libnccl::communicator::Health::Busy {
                std::thread::yield_now();
            }
            drop((registration, halves, buffer));
            if round % 3 == 0 {
                owner.abort().unwrap();
            } else {
                comm.send(&[1_u8], 0, STREAM).unwrap();
            }
        });
        if round == 10 {
            first = descriptors();
        }
    }
    let last = descriptors();
    assert!(last <= first + 5, "{first} descriptors after 10 rounds, {last} after {ROUNDS}");
}

#[test]
fn objects_of_a_borrowed_communicator_do_not_use_it_afterwards() {
    for open in [device, host] {
        let (fake, nccl, comm) = open();
        let mut kept = None;
        // SAFETY: `comm` is not used as long as it is borrowed.
        let borrowed = unsafe {
            Communicator::borrow_raw(&nccl, comm.as_raw(), |borrowed| {
                kept = Some(Owned::new(&fake, &nccl, borrowed));
                Ok(())
            })
        };
        borrowed.unwrap();
        // The owner may destroy it before the objects.
        comm.destroy().unwrap();
        calls(&fake);
        let Owned { registration, window, halves, buffers } = kept.unwrap();
        assert!(matches!(registration.deregister(), Err(Error::Aborted { call: "deregister" })));
        assert!(matches!(window.user_ptr(), Err(Error::Aborted { call: "user_ptr" })));
        assert!(matches!(window.deregister(), Err(Error::Aborted { call: "deregister" })));
        drop((halves, buffers));
        assert!(calls(&fake).is_empty());
        assert_eq!(fake.violations(), [] as [String; 0]);
    }
}

#[test]
fn window_in_its_group_is_not_active_and_is_deregistered_afterwards() {
    let (fake, nccl, comm) = device();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let problem = "deregister: the group that registers the window has failed or has not ended";
    nccl.group(|g| {
        // SAFETY: it is the only rank.
        let window = unsafe { g.register_window(&comm, &mut buffer, WindowFlags::DEFAULT) }?;
        assert!(!window.is_active());
        // SAFETY: the fake does no work.
        unsafe { buffer.assume_idle() };
        assert_eq!(text(window.deregister()), problem);
        Ok(())
    })
    .unwrap();
    drop(buffer);
    assert_eq!(calls(&fake)[2..], [DEREGISTER_WINDOW, FREE]);
    assert_eq!(fake.violations(), [] as [String; 0]);
}

#[test]
fn refused_window_is_an_error_of_its_group() {
    let (_fake, nccl, comm) = device();
    let mut empty = nccl.alloc::<f32>(0).unwrap();
    let ended = nccl.group(|g| {
        // SAFETY: it is the only rank.
        let _ = unsafe { g.register_window(&comm, &mut empty, WindowFlags::DEFAULT) };
        Ok(())
    });
    assert_eq!(text(ended), "register_window: the buffer is empty; expected at least one element");
}

#[test]
fn window_of_a_failed_group_keeps_its_memory() {
    let (fake, nccl, comm) = device();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let mut kept = None;
    let failed = nccl.group(|g| {
        // SAFETY: it is the only rank.
        kept = Some(unsafe { g.register_window(&comm, &mut buffer, WindowFlags::DEFAULT) }?);
        Err::<(), _>(Error::Aborted { call: "the closure" })
    });
    failed.unwrap_err();
    // SAFETY: the fake does no work.
    unsafe { buffer.assume_idle() };
    let problem = "deregister: the group that registers the window has failed or has not ended";
    assert_eq!(text(kept.unwrap().deregister()), problem);
    drop(buffer);
    assert!(!calls(&fake).contains(&FREE.into()));
}

/// Fails if a call of the owner meets the end of an object in NCCL: the CPU backend allows one thread at a time.
#[test]
fn owner_works_while_another_thread_drops_owned_objects() {
    let nccl = libnccl_cpu::nccl();
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    let mut value = [1_u32];
    for _ in 0..20 {
        let reductions: Vec<_> = (0..200).map(|_| comm.pre_mul_sum(1_u32).unwrap()).collect();
        let buffer = nccl.alloc::<u8>(4096).unwrap();
        let registrations: Vec<_> = (0..200).map(|_| comm.register(&buffer).unwrap()).collect();
        let dropping = std::thread::spawn(move || drop((reductions, registrations)));
        while !dropping.is_finished() {
            comm.all_reduce_in_place(&mut value, ReduceOp::Sum, STREAM).unwrap();
            assert_eq!(comm.async_error().unwrap(), ResultCode::SUCCESS);
        }
        dropping.join().unwrap();
    }
    comm.destroy().unwrap();
}

#[test]
fn window_is_deregistered_before_its_memory_is_freed() {
    let (fake, nccl, comm) = device();
    let flags = WindowFlags::COLL_SYMMETRIC | WindowFlags::STRICT_ORDERING;
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let window = register_window(&comm, &mut buffer, flags).unwrap();
    assert_eq!((window.as_raw().addr(), window.len(), window.is_active()), (WINDOW, 8, true));
    assert_eq!(window.user_ptr().unwrap().addr(), USER_POINTER);
    sum(&comm, &mut buffer);
    // SAFETY: the fake does no work.
    unsafe { buffer.assume_idle() };
    drop(buffer);
    window.deregister().unwrap();
    assert_eq!(
        calls(&fake),
        [ALLOC, "ncclCommWindowRegister(comm0, memory, 32, &, 3)", USER_PTR, DEREGISTER_WINDOW, FREE]
    );

    // Until someone promises otherwise, other ranks may still use the window.
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    drop(register_window(&comm, &mut buffer, WindowFlags::DEFAULT).unwrap());
    // SAFETY: as above.
    unsafe { buffer.assume_idle() };
    drop(buffer);
    assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW]);

    // A system without windows.
    fake.set_registers(false);
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let window = register_window(&comm, &mut buffer, WindowFlags::DEFAULT).unwrap();
    assert!(!window.is_active());
    assert!(window.user_ptr().unwrap().is_null());
    let put = comm.put_signal(&buffer, 0, window.at(0), Signal::default(), STREAM);
    assert_eq!(text(put), "put_signal: the window is not active");
    drop(window);
    // SAFETY: as above.
    unsafe { buffer.assume_idle() };
    drop(buffer);
    assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW, FREE]);
}

/// Other ranks may have the window nevertheless, or still use it.
#[test]
fn memory_of_a_window_whose_call_fails_is_kept() {
    let (fake, nccl, comm) = device();
    for code in CODES {
        let mut buffer = nccl.alloc::<f32>(8).unwrap();
        let registered = failing(&fake, "ncclCommWindowRegister", code, || {
            register_window(&comm, &mut buffer, WindowFlags::DEFAULT).map(drop)
        });
        registered.unwrap_err();
        assert!(matches!(buffer.free(), Err(Error::InvalidUsage { call: "free", .. })));
        assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW]);

        let mut buffer = nccl.alloc::<f32>(8).unwrap();
        let window = register_window(&comm, &mut buffer, WindowFlags::DEFAULT).unwrap();
        // SAFETY: there is no work.
        unsafe { buffer.assume_idle() };
        failing(&fake, "ncclCommWindowDeregister", code, || window.deregister()).unwrap_err();
        drop(buffer);
        assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW, DEREGISTER_WINDOW]);
    }
}

#[test]
fn window_flags_need_their_release_and_conflicts_are_errors() {
    let (fake, nccl, comm) = device();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    for (flag, name) in
        [(WindowFlags::GIN_ONLY, "NCCL_WIN_GIN_ONLY"), (WindowFlags::CFT_COUNTED, "NCCL_WIN_CFT_COUNTED")]
    {
        let problem = text(register_window(&comm, &mut buffer, flag | WindowFlags::COLL_SYMMETRIC));
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
        let (major, minor, patch) = since;
        fake.set_version(Version::new(major, minor, patch).code().cast_signed());
        calls(&fake);
        drop(register_window(&open(&fake).1, &mut buffer, flag).unwrap());
        let registered = calls(&fake);
        assert!(registered.iter().any(|call| call.ends_with(&format!(", 32, &, {bits})"))), "{registered:?}");
        if before > 0 {
            fake.set_version(before);
            let error = register_window(&open(&fake).1, &mut buffer, flag).map(drop).unwrap_err();
            let Error::Unsupported { since, .. } = error else { panic!("{error}") };
            assert_eq!(since, Version::new(major, minor, patch));
        }
    }
}

#[test]
fn group_activates_windows_at_its_end() {
    let (fake, nccl, comms) = pair();
    let mut buffers = [nccl.alloc::<f32>(8).unwrap(), nccl.alloc::<f32>(8).unwrap()];
    let flags = WindowFlags::COLL_SYMMETRIC;
    let windows: Vec<Window<f32>> = nccl
        .group(|g| {
            let windows = comms.iter().zip(&mut buffers).map(|(comm, b)| {
                // SAFETY: all are of the same size.
                unsafe { g.register_window(comm, b, flags) }
            });
            let windows: Result<Vec<_>> = windows.collect();
            assert!(windows.iter().flatten().all(|window| !window.is_active()));
            windows
        })
        .unwrap();
    assert!(windows.iter().all(Window::is_active));
    // SAFETY: there is no work.
    buffers.iter_mut().for_each(|buffer| unsafe { buffer.assume_idle() });
    drop(windows);
    let register = "ncclCommWindowRegister(comm0, memory, 32, &, 1)";
    let deregister = DEREGISTER_WINDOW;
    let of_comm1 = |call: &str| call.replace("comm0", "comm1");
    let (register1, deregister1) = (&*of_comm1(register), &*of_comm1(deregister));
    assert_eq!(calls(&fake), [ALLOC, ALLOC, register, register1, deregister, deregister1]);

    // Dropped before NCCL has written the window: the memory is kept.
    // SAFETY: as above.
    nccl.group(|g| unsafe { g.register_window(&comms[0], &mut buffers[0], flags) }.map(drop)).unwrap();
    // A group that fails.
    let error = nccl.group(|g| {
        // SAFETY: as above.
        unsafe { g.register_window(&comms[1], &mut buffers[1], flags) }?;
        Err::<(), _>(Error::from(libnccl::error::LoadError::NoBackend))
    });
    assert!(error.is_err());
    drop(buffers);
    assert_eq!(calls(&fake), [register, register1]);
}

#[test]
fn host_buffer_registered_as_window_is_no_slice() {
    let (fake, nccl, comm) = host();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let window = register_window(&comm, &mut buffer, WindowFlags::DEFAULT).unwrap();
    assert_eq!(buffer.as_slice(), None);
    assert_eq!(buffer.as_mut_slice(), None);
    sum(&comm, &mut buffer);
    // SAFETY: no other rank uses it.
    unsafe { buffer.assume_idle() };
    drop(window);
    assert_eq!(buffer.as_slice(), Some(&[0.0; 8][..]));
    let window = register_window(&comm, &mut buffer, WindowFlags::DEFAULT).unwrap();
    comm.abort_handle().abort().unwrap();
    // SAFETY: as above.
    unsafe { buffer.assume_idle() };
    drop(window);
    assert!(buffer.as_mut_slice().is_some());
    drop(buffer);
    let window = REGISTER_WINDOW;
    assert_eq!(calls(&fake), [ALLOC, window, DEREGISTER_WINDOW, window, ABORT, FREE]);
}

#[test]
fn host_memory_of_a_failed_window_is_kept_and_is_no_slice() {
    let (fake, nccl, comm) = host();
    for code in CODES {
        let mut buffer = nccl.alloc::<f32>(8).unwrap();
        let error = failing(&fake, "ncclCommWindowRegister", code, || {
            register_window(&comm, &mut buffer, WindowFlags::DEFAULT).map(drop)
        });
        assert!(error.is_err());
        // SAFETY: there is no work.
        unsafe { buffer.assume_idle() };
        assert_eq!(buffer.as_slice(), None);
        assert_eq!(buffer.as_mut_slice(), None);
        drop(buffer);
        assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW]);
    }
    // NCCL was not called.
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let wrong = WindowFlags::COLL_SYMMETRIC | WindowFlags::GIN_ONLY;
    assert!(register_window(&comm, &mut buffer, wrong).is_err());
    comm.abort_handle().abort().unwrap();
    let aborted = register_window(&comm, &mut buffer, WindowFlags::DEFAULT).map(drop);
    assert!(matches!(aborted, Err(Error::Aborted { .. })), "{aborted:?}");
    assert!(buffer.as_slice().is_some());
    drop(buffer);
    assert_eq!(calls(&fake), [ALLOC, ABORT, FREE]);
}

/// Other ranks may write to it even after this rank's communicator has ended.
#[test]
fn host_window_memory_is_kept_until_assumed_idle() {
    let (fake, nccl, comm) = host();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let window = register_window(&comm, &mut buffer, WindowFlags::DEFAULT).unwrap();
    let refused = text(window.deregister());
    assert!(refused.starts_with("deregister: work that uses the memory may not have run yet"), "{refused}");
    assert!(buffer.as_slice().is_none());
    drop(buffer);
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let window = register_window(&comm, &mut buffer, WindowFlags::DEFAULT).unwrap();
    comm.abort_handle().abort().unwrap();
    drop((window, buffer));
    assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW, ALLOC, REGISTER_WINDOW, ABORT]);
}

#[test]
fn one_sided_operations_check_their_arguments() {
    let (fake, nccl, comms) = pair();
    let comm = &comms[0];
    let mut buffer = nccl.alloc::<f64>(8).unwrap();
    let window = register_window(comm, &mut buffer, WindowFlags::COLL_SYMMETRIC).unwrap();
    let mut elsewhere = nccl.alloc::<f64>(8).unwrap();
    let elsewhere = register_window(&comms[1], &mut elsewhere, WindowFlags::COLL_SYMMETRIC).unwrap();
    calls(&fake);
    let first = Signal::default();
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
    let options = libnccl::config::CollectiveConfig::new().max_ctas(1);
    assert!(
        text(comm.signal(1, first, CallOptions::on(STREAM).config(&options))).contains("takes no options")
    );
    assert!(calls(&fake).is_empty());
}

#[test]
fn host_buffer_after_work_needs_no_assume_idle() {
    let (fake, nccl, comm) = host();
    let mut buffer = nccl.alloc::<f32>(8).unwrap();
    let registration = comm.register(&buffer).unwrap();
    sum(&comm, &mut buffer);
    registration.deregister().unwrap();
    assert_eq!(buffer.as_slice(), Some(&[0.0; 8][..]));
    buffer.free().unwrap();
    assert_eq!(calls(&fake), [ALLOC, REGISTER, DEREGISTER, FREE]);
    // A device buffer with a host communicator.
    fake.set_host_memory(false);
    let elsewhere = fake.nccl().alloc::<f32>(8).unwrap();
    let problem = "register: the buffer is in device memory; the communicator works on host memory";
    assert_eq!(text(comm.register(&elsewhere)), problem);
}

// Regression: ferrotorch's barrier does not wait.
#[test]
fn barrier_waits_for_every_rank() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    let comms = libnccl_cpu::nccl().init_all(&[0, 1, 2]).unwrap();
    let arrivals = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for comm in comms {
            let arrivals = &arrivals;
            scope.spawn(move || {
                for round in 1..=20 {
                    if comm.rank() == round % 3 {
                        std::thread::sleep(std::time::Duration::from_millis(2));
                    }
                    arrivals.fetch_add(1, SeqCst);
                    comm.barrier(&mut [0_u8], STREAM).unwrap();
                    assert_eq!(arrivals.load(SeqCst), 3 * round);
                    comm.barrier(&mut [0_u8], STREAM).unwrap();
                }
            });
        }
    });
    let nccl = libnccl_cpu::nccl();
    let comms = nccl.init_all(&[0, 1]).unwrap();
    let mut buffers = [[1.5_f32], [2.5]];
    nccl.group(|g| {
        let mut ranks = comms.iter().zip(&mut buffers);
        ranks.try_for_each(|(comm, buffer)| comm.barrier(buffer, g.stream(STREAM)))
    })
    .unwrap();
    assert_eq!(
        text(comms[0].barrier(&mut [0_u8; 0], STREAM)),
        "barrier: the buffer is empty; expected one element"
    );
    assert!(matches!(nccl.group(|_| comms[0].barrier(&mut [0_u8], STREAM)), Err(Error::InvalidUsage { .. })));
}

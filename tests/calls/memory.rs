//! Memory of NCCL, registrations, windows and one-sided operations: the C calls that they make, and when memory is freed.
#![allow(unsafe_code)]

use std::ops::Bound;
use std::thread;

use libnccl::buffer::MemorySpace;
use libnccl::window::{Registration, Signal, WaitSignal, Window, WindowFlags};
use libnccl::{
    CallOptions, Communicator, Error, Nccl, NcclBuffer, PreMulSum, ReduceOp, Result, Slice, SliceMut,
    StreamRef, Version,
};
use libnccl_test_support::fake_nccl::{FakeNccl, REGISTRATION, USER_POINTER, WINDOW};

use crate::faults::failures;

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

/// The calls for a buffer of 32 bytes.
const ALLOC: &str = "ncclMemAlloc(&, 32)";
const FREE: &str = "ncclMemFree(memory)";
const REGISTER: &str = "ncclCommRegister(comm0, memory, 32, &)";
const DEREGISTER: &str = "ncclCommDeregister(comm0, 0x1230)";
const REGISTER_WINDOW: &str = "ncclCommWindowRegister(comm0, memory, 32, &, 0)";
const DEREGISTER_WINDOW: &str = "ncclCommWindowDeregister(comm0, 0x4560)";
const DESTROY_OPERATOR: &str = "ncclRedOpDestroy(custom0, comm0)";
const ABORT: &str = "ncclCommAbort(comm0)";

/// Takes the calls that concern memory, operators and one-sided operations from the log.
fn calls(fake: &FakeNccl) -> Vec<String> {
    const KEPT: [&str; 6] =
        ["ncclMem", "egister(", "ncclWin", "ncclRedOpDestroy", "Signal(", "ncclCommAbort"];
    let mut log = fake.take_log();
    log.retain(|call| KEPT.iter().any(|kept| call.contains(kept)));
    log
}

/// Opens a library that works on the memory of a GPU or of the host, with a communicator of one rank.
fn open(is_host: bool) -> (FakeNccl, Nccl, Communicator) {
    let fake = FakeNccl::new();
    fake.set(|fake| (fake.has_host_memory, fake.size_and_rank) = (is_host, (1, 0)));
    let nccl = fake.nccl();
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    fake.take_log();
    (fake, nccl, comm)
}

fn alloc(nccl: &Nccl) -> NcclBuffer<f32> {
    nccl.alloc(8).unwrap()
}

fn register_window(
    comm: &Communicator,
    buffer: &mut NcclBuffer<f32>,
    flags: WindowFlags,
) -> Result<Window<f32>> {
    // SAFETY: the fake accesses no memory.
    unsafe { comm.register_window(buffer, flags) }
}

fn window_of(comm: &Communicator, buffer: &mut NcclBuffer<f32>) -> Window<f32> {
    register_window(comm, buffer, WindowFlags::DEFAULT).unwrap()
}

fn assume_idle(buffer: &mut NcclBuffer<f32>) {
    // SAFETY: the fake does no work, and has no other ranks.
    unsafe { buffer.assume_idle() };
}

fn failing<R>(fake: &FakeNccl, function: &'static str, code: u32, act: impl FnOnce() -> R) -> R {
    fake.set_code(function, code);
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

/// For example, the program loads CUDA.
#[test]
fn buffer_keeps_its_memory_space_when_the_librarys_changes() {
    let (fake, nccl, comm) = open(true);
    let mut buffers = [8, 0].map(|length| nccl.alloc::<f32>(length).unwrap());
    sum(&comm, &mut buffers[0]);
    let registration = comm.register(&buffers[0]).unwrap();
    fake.set(|fake| fake.has_host_memory = false);
    assert_eq!(nccl.memory_space(), MemorySpace::Device);
    let elsewhere = alloc(&nccl);
    assert_eq!(elsewhere.as_slice(), None);
    let problem = "register: the buffer is in device memory; the communicator works on host memory";
    assert_eq!(text(comm.register(&elsewhere)), problem);
    drop(elsewhere);
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
fn memory_space_changed_during_alloc_matches_the_memory() {
    let (fake, nccl, _comm) = open(true);
    fake.set(|fake| fake.ends_host_memory = true);
    assert_eq!(alloc(&nccl).as_slice(), None);
    assert_eq!(calls(&fake), [ALLOC, FREE, ALLOC, FREE], "first, the memory that may be host memory");
}

#[test]
fn zero_length_uses_no_memory_and_overflow_is_an_error() {
    let (fake, nccl, comm) = open(false);
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

#[test]
fn misaligned_memory_is_invalid_usage() {
    let (fake, nccl, comm) = open(false);
    fake.misalign_memory(1);
    assert!(matches!(nccl.alloc::<f32>(1), Err(Error::InvalidUsage { call: "alloc", .. })));
    fake.misalign_memory(8);
    let problem = text(register_window(&comm, &mut alloc(&nccl), WindowFlags::DEFAULT));
    assert!(problem.ends_with("008 is not a multiple of 4096 bytes"), "{problem}");
}

#[test]
fn buffer_with_work_in_flight_is_not_freed() {
    type Use = fn(&Nccl, &Communicator, &mut NcclBuffer<f32>);
    let uses: [(&str, bool, Use); 7] = [
        ("none", true, |_, _, _| {}),
        ("an operation", false, |_, comm, buffer| sum(comm, buffer)),
        ("an operation that reads it", false, |nccl, comm, buffer| {
            comm.broadcast(&*buffer, &mut alloc(nccl), 0, STREAM).unwrap();
        }),
        ("a group", false, |nccl, comm, buffer| {
            nccl.group(|g| comm.all_reduce_in_place(buffer, ReduceOp::Sum, g.stream(STREAM))).unwrap();
        }),
        // An operation on plain memory cannot mark the buffer.
        ("a slice", false, |_, _, buffer| drop(SliceMut::from(buffer))),
        ("a slice that is read", false, |_, _, buffer| {
            let _ = Slice::from(&*buffer);
        }),
        ("parts that are out of bounds", true, |_, _, buffer| {
            assert!(buffer.get(9..).is_none() && buffer.get_mut(..9).is_none());
        }),
    ];
    let busy = "free: work that uses the memory may not have run yet; wait for it, then call assume_idle";
    for (name, is_free, act) in uses {
        let (fake, nccl, comm) = open(false);
        let [mut dropped, mut freed, mut idle] = [(); 3].map(|()| alloc(&nccl));
        for buffer in [&mut dropped, &mut freed, &mut idle] {
            act(&nccl, &comm, buffer);
        }
        calls(&fake);
        drop(dropped);
        assert_eq!(
            freed.free().map_err(|error| error.to_string()).err().as_deref(),
            (!is_free).then_some(busy)
        );
        assert_eq!(calls(&fake), vec![FREE; if is_free { 2 } else { 0 }], "{name}");
        assume_idle(&mut idle);
        drop(idle);
        assert_eq!(calls(&fake), [FREE], "{name}");
    }
}

#[test]
fn buffer_views_cover_the_requested_range() {
    let nccl = libnccl_cpu::nccl();
    let mut buffer = nccl.alloc::<u8>(4).unwrap();
    buffer.as_mut_slice().unwrap().copy_from_slice(&[1, 2, 3, 4]);
    let length = |view: Option<Slice<'_, u8>>| view.map(|view| view.len());
    assert_eq!(length(buffer.get(..)), Some(4));
    assert_eq!(length(buffer.get(4..)), Some(0));
    assert_eq!(length(buffer.get(1..=2)), Some(2));
    assert_eq!(length(buffer.get((Bound::Excluded(1), Bound::Unbounded))), Some(2));
    assert_eq!(length(buffer.get((Bound::Excluded(usize::MAX), Bound::Unbounded))), None);
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
}

#[test]
fn registration_in_any_drop_order_is_removed_before_its_memory() {
    type End = fn(&Nccl, NcclBuffer<f32>, Registration);
    let ends: [End; 4] = [
        |_, buffer, registration| {
            assert_eq!(registration.as_raw().addr(), REGISTRATION);
            drop(registration);
            buffer.free().unwrap();
        },
        |_, buffer, registration| {
            drop(buffer);
            registration.deregister().unwrap();
        },
        |_, buffer, registration| {
            assert_eq!(text(buffer.free()), "free: the memory is still registered");
            drop(registration);
        },
        |nccl, buffer, registration| {
            nccl.group(|_| {
                drop((registration, buffer));
                Ok(())
            })
            .unwrap();
        },
    ];
    for end in ends {
        let (fake, nccl, comm) = open(false);
        let buffer = alloc(&nccl);
        let registration = comm.register(&buffer).unwrap();
        end(&nccl, buffer, registration);
        assert_eq!(calls(&fake), [ALLOC, REGISTER, DEREGISTER, FREE]);
    }
}

#[test]
fn buffer_that_stays_registered_is_never_freed() {
    let (fake, nccl, comm) = open(false);
    let registered = || -> (NcclBuffer<f32>, Registration) {
        let buffer = alloc(&nccl);
        let registration = comm.register(&buffer).unwrap();
        calls(&fake);
        (buffer, registration)
    };
    let (mut buffer, registration) = registered();
    sum(&comm, &mut buffer);
    assert!(
        text(registration.deregister()).starts_with("deregister: work that uses the memory may not have")
    );
    assume_idle(&mut buffer);
    drop(buffer);
    let (buffer, registration) = registered();
    std::mem::forget(registration);
    drop(buffer);
    assert!(calls(&fake).is_empty());
    for code in failures() {
        let (buffer, registration) = registered();
        failing(&fake, "ncclCommDeregister", code, || registration.deregister()).unwrap_err();
        drop(buffer);
        assert_eq!(calls(&fake), [DEREGISTER]);
        let buffer = alloc(&nccl);
        failing(&fake, "ncclCommRegister", code, || comm.register(&buffer).map(drop)).unwrap_err();
        drop(buffer);
        assert_eq!(calls(&fake), [ALLOC, REGISTER, FREE]);
    }
    // NCCL succeeds with a null handle.
    fake.set(|fake| fake.registers = false);
    let (buffer, registration) = registered();
    registration.deregister().unwrap();
    drop(buffer);
    assert_eq!(calls(&fake), [FREE]);
}

/// A registration, a window and a reduction of a communicator, with the buffers of the first two.
struct Objects {
    registration: Registration,
    window: Window<f32>,
    halves: PreMulSum<'static, f32>,
    buffers: [NcclBuffer<f32>; 2],
}

impl Objects {
    fn new(fake: &FakeNccl, nccl: &Nccl, comm: &Communicator) -> Self {
        let mut buffers = [(); 2].map(|()| alloc(nccl));
        let registration = comm.register(&buffers[0]).unwrap();
        let window = window_of(comm, &mut buffers[1]);
        let halves = comm.pre_mul_sum(0.5).unwrap();
        assume_idle(&mut buffers[1]);
        calls(fake);
        Self { registration, window, halves, buffers }
    }
}

#[test]
fn objects_are_destroyed_on_any_thread_before_their_communicator() {
    for is_host in [false, true] {
        let (fake, nccl, comm) = open(is_host);
        let mut objects = Objects::new(&fake, &nccl, &comm);
        comm.put_signal(&objects.buffers[1], 0, objects.window.at(0), Signal::default(), STREAM).unwrap();
        let mut sum = alloc(&nccl);
        nccl.group(|g| comm.all_reduce_in_place(&mut sum, &objects.halves, g.stream(STREAM))).unwrap();
        assume_idle(&mut objects.buffers[1]);
        calls(&fake);
        let attached = fake.clone();
        let end = move || {
            attached.attach();
            drop((objects.registration, objects.halves));
            objects.window.deregister().unwrap();
            drop(objects.buffers);
        };
        thread::spawn(end).join().unwrap();
        assert_eq!(calls(&fake), [DEREGISTER, DESTROY_OPERATOR, DEREGISTER_WINDOW, FREE, FREE]);
        drop((sum, comm));
        assert_eq!(fake.violations(), [""; 0]);
    }
}

#[test]
fn objects_that_outlive_their_communicator_do_not_use_it() {
    type End = fn(Communicator);
    let ends: [(&str, End); 5] = [
        ("drop", drop),
        ("destroy", |comm| comm.destroy().unwrap()),
        ("abort", |comm| comm.abort().unwrap()),
        ("finalize and destroy", |comm| comm.finalize().unwrap().destroy().unwrap()),
        ("abort by a handle", |comm| comm.abort_handle().abort().unwrap()),
    ];
    for (name, end) in ends {
        // A GPU may still use the memory.
        for (is_host, frees) in [(false, 0), (true, 2)] {
            let (fake, nccl, comm) = open(is_host);
            let objects = Objects::new(&fake, &nccl, &comm);
            end(comm);
            calls(&fake);
            drop(objects);
            assert_eq!(calls(&fake), vec![FREE; frees], "{name}");
            assert_eq!(fake.violations(), [""; 0]);
        }
    }
}

#[test]
fn objects_of_a_borrowed_communicator_do_not_use_it_afterwards() {
    for is_host in [false, true] {
        let (fake, nccl, comm) = open(is_host);
        let mut kept = None;
        // SAFETY: `comm` is not used as long as it is borrowed.
        let borrowed = unsafe {
            Communicator::borrow_raw(&nccl, comm.as_raw(), |borrowed| {
                kept = Some(Objects::new(&fake, &nccl, borrowed));
                Ok(())
            })
        };
        borrowed.unwrap();
        // The owner may destroy it before the objects.
        comm.destroy().unwrap();
        calls(&fake);
        let Objects { registration, window, halves, buffers } = kept.unwrap();
        assert!(matches!(registration.deregister(), Err(Error::Aborted { call: "deregister" })));
        assert!(matches!(window.user_ptr(), Err(Error::Aborted { call: "user_ptr" })));
        assert!(matches!(window.deregister(), Err(Error::Aborted { call: "deregister" })));
        drop((halves, buffers));
        assert!(calls(&fake).is_empty());
        assert_eq!(fake.violations(), [""; 0]);
    }
}

#[test]
fn objects_dropped_in_a_group_are_destroyed_after_it() {
    for is_host in [false, true] {
        let (fake, nccl, comm) = open(is_host);
        let mut other = alloc(&nccl);
        let Objects { registration, window, halves, buffers } = Objects::new(&fake, &nccl, &comm);
        nccl.group(|g| {
            comm.all_reduce_in_place(&mut other, ReduceOp::Sum, g.stream(STREAM))?;
            let problem = "deregister: the communicator is in use: in an open group, or by another thread";
            assert_eq!(text(registration.deregister()), problem);
            assert_eq!(text(window.deregister()), problem);
            thread::spawn(|| drop((halves, buffers))).join().unwrap();
            assert!(calls(&fake).is_empty());
            Ok(())
        })
        .unwrap();
        assert_eq!(calls(&fake), [DEREGISTER, DEREGISTER_WINDOW, DESTROY_OPERATOR, FREE, FREE]);
        // Memory that is busy when the object is dropped, and idle when the communicator is used again.
        let Objects { registration, window, halves, mut buffers } = Objects::new(&fake, &nccl, &comm);
        comm.put_signal(&buffers[1], 0, window.at(0), Signal::default(), STREAM).unwrap();
        drop(window);
        nccl.group(|g| {
            comm.all_reduce_in_place(&mut other, ReduceOp::Sum, g.stream(STREAM))?;
            assume_idle(&mut buffers[1]);
            drop(halves);
            Ok(())
        })
        .unwrap();
        drop((registration, buffers));
        let (log, second) = (calls(&fake), DESTROY_OPERATOR.replace("custom0", "custom1"));
        assert_eq!(log[1..], [DEREGISTER_WINDOW, &second, DEREGISTER, FREE, FREE], "{log:?}");
        assert_eq!(fake.violations(), [""; 0]);
    }
}

#[test]
fn objects_of_a_finalized_communicator_are_destroyed_with_it() {
    for (is_host, frees) in [(false, 0), (true, 2)] {
        let (fake, nccl, comm) = open(is_host);
        // Handed to other code, together with the windows and registrations.
        let objects = Objects::new(&fake, &nccl, &comm);
        let raw = comm.into_raw();
        drop(objects);
        // SAFETY: taken from `into_raw` just before.
        let comm = unsafe { Communicator::from_raw(&nccl, raw) }.unwrap();
        let objects = Objects::new(&fake, &nccl, &comm);
        let finalized = comm.finalize().unwrap();
        let refused = text(objects.registration.deregister());
        assert_eq!(refused, "deregister: the communicator is finalized; it can only be aborted or destroyed");
        drop((objects.window, objects.halves, objects.buffers));
        assert!(calls(&fake).is_empty());
        finalized.destroy().unwrap();
        assert_eq!(calls(&fake), vec![FREE; frees]);
        assert_eq!(fake.violations(), [""; 0]);
    }
}

/// The drop may happen before, during or after a call of the owner.
#[test]
fn memory_of_objects_dropped_during_calls_of_their_owner_is_freed() {
    const ROUNDS: usize = 300;
    let (fake, nccl, comm) = open(true);
    let mut log = Vec::new();
    for _ in 0..ROUNDS {
        let objects = Objects::new(&fake, &nccl, &comm);
        let attached = fake.clone();
        let dropping = thread::spawn(move || {
            attached.attach();
            drop(objects);
        });
        while !dropping.is_finished() {
            comm.all_reduce_in_place(&mut [1_u32], ReduceOp::Sum, STREAM).unwrap();
        }
        dropping.join().unwrap();
        log.append(&mut calls(&fake));
    }
    let count = |expected: &str| log.iter().filter(|call| call.starts_with(expected)).count();
    let ends = [DEREGISTER, DEREGISTER_WINDOW, "ncclRedOpDestroy("].map(count);
    assert_eq!((ends, count(FREE)), ([ROUNDS; 3], 2 * ROUNDS));
    comm.destroy().unwrap();
    assert_eq!(fake.violations(), [""; 0]);
}

#[test]
fn window_is_deregistered_before_its_memory_is_freed() {
    for (registers, expected) in [
        (true, &[ALLOC, REGISTER_WINDOW, DEREGISTER_WINDOW, FREE][..]),
        // A system without windows.
        (false, &[ALLOC, REGISTER_WINDOW, FREE]),
    ] {
        let (fake, nccl, comm) = open(false);
        fake.set(|fake| fake.registers = registers);
        let mut buffer = alloc(&nccl);
        let window = window_of(&comm, &mut buffer);
        let addresses = [window.as_raw().addr(), window.user_ptr().unwrap().addr()];
        assert_eq!(addresses, if registers { [WINDOW, USER_POINTER] } else { [0; 2] });
        assert_eq!((window.is_active(), window.len()), (registers, 8));
        let put = comm.put_signal(&buffer, 0, window.at(0), Signal::default(), STREAM);
        let problem = put.err().map(|error| error.to_string());
        assert_eq!(problem.as_deref(), (!registers).then_some("put_signal: the window is not active"));
        assume_idle(&mut buffer);
        drop(buffer);
        window.deregister().unwrap();
        let mut log = calls(&fake);
        log.retain(|call| !call.contains("UserPtr") && !call.contains("Signal"));
        assert_eq!(log, expected);
    }
}

/// Other ranks may write to it, even after this rank's communicator has ended.
#[test]
fn window_memory_is_kept_and_is_no_slice_until_assumed_idle() {
    for is_host in [false, true] {
        let (fake, nccl, comm) = open(is_host);
        let mut buffer = alloc(&nccl);
        let window = window_of(&comm, &mut buffer);
        let refused = text(window.deregister());
        assert!(refused.starts_with("deregister: work that uses the memory may not have run"), "{refused}");
        assert!(buffer.as_slice().is_none() && buffer.as_mut_slice().is_none());
        drop(buffer);
        assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW]);

        let mut buffer = alloc(&nccl);
        let window = window_of(&comm, &mut buffer);
        sum(&comm, &mut buffer);
        assume_idle(&mut buffer);
        drop(window);
        assert_eq!(buffer.as_slice().is_some(), is_host);
        let window = window_of(&comm, &mut buffer);
        comm.abort_handle().abort().unwrap();
        drop(window);
        assert!(buffer.as_slice().is_none());
        assert!(matches!(buffer.free(), Err(Error::InvalidUsage { call: "free", .. })));
        assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW, DEREGISTER_WINDOW, REGISTER_WINDOW, ABORT]);
    }
}

/// Other ranks may have the window nevertheless, or still use it.
#[test]
fn memory_of_a_failed_window_call_is_kept() {
    for is_host in [false, true] {
        let (fake, nccl, comm) = open(is_host);
        for code in failures() {
            let mut buffer = alloc(&nccl);
            failing(&fake, "ncclCommWindowRegister", code, || {
                register_window(&comm, &mut buffer, WindowFlags::DEFAULT).map(drop)
            })
            .unwrap_err();
            assume_idle(&mut buffer);
            assert!(buffer.as_slice().is_none() && buffer.as_mut_slice().is_none());
            assert!(matches!(buffer.free(), Err(Error::InvalidUsage { call: "free", .. })));
            assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW]);

            let mut buffer = alloc(&nccl);
            let window = window_of(&comm, &mut buffer);
            assume_idle(&mut buffer);
            failing(&fake, "ncclCommWindowDeregister", code, || window.deregister()).unwrap_err();
            drop(buffer);
            assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW, DEREGISTER_WINDOW]);
        }
        // NCCL was not called.
        let (fake, nccl, comm) = open(is_host);
        let mut buffer = alloc(&nccl);
        let wrong = WindowFlags::COLL_SYMMETRIC | WindowFlags::GIN_ONLY;
        register_window(&comm, &mut buffer, wrong).map(drop).unwrap_err();
        comm.abort_handle().abort().unwrap();
        let aborted = register_window(&comm, &mut buffer, WindowFlags::DEFAULT).map(drop);
        assert!(matches!(aborted, Err(Error::Aborted { .. })), "{aborted:?}");
        assert_eq!(buffer.as_slice().is_some(), is_host);
        drop(buffer);
        assert_eq!(calls(&fake), [ALLOC, ABORT, FREE]);
    }
}

#[test]
fn group_registers_several_windows_and_fails_if_one_is_refused() {
    let (_fake, nccl, comm) = open(false);
    let mut buffers = [(); 2].map(|()| alloc(&nccl));
    let register = |buffers: &mut [NcclBuffer<f32>; 2], flags: [_; 2]| {
        nccl.group(|g| {
            let pairs = buffers.iter_mut().zip(flags);
            // SAFETY: the fake accesses no memory.
            let windows = pairs.map(|(buffer, flags)| unsafe { g.register_window(&comm, buffer, flags) });
            Ok(windows.collect::<Vec<_>>())
        })
    };
    let windows = register(&mut buffers, [WindowFlags::DEFAULT; 2]).unwrap();
    buffers.iter_mut().for_each(assume_idle);
    windows.into_iter().for_each(|window| window.unwrap().deregister().unwrap());
    let wrong = WindowFlags::GIN_ONLY | WindowFlags::COLL_SYMMETRIC;
    let refused = register(&mut buffers, [wrong, WindowFlags::DEFAULT]);
    assert!(matches!(refused, Err(Error::InvalidArgument { call: "register_window", .. })), "{refused:?}");
}

#[test]
fn window_flags_need_their_version_and_conflicts_are_errors() {
    let (fake, nccl, comm) = open(false);
    let mut buffer = alloc(&nccl);
    for (flag, name) in
        [(WindowFlags::GIN_ONLY, "NCCL_WIN_GIN_ONLY"), (WindowFlags::CFT_COUNTED, "NCCL_WIN_CFT_COUNTED")]
    {
        let problem = text(register_window(&comm, &mut buffer, flag | WindowFlags::COLL_SYMMETRIC));
        let expected = format!("register_window: {name} cannot be combined with NCCL_WIN_COLL_SYMMETRIC");
        assert_eq!(problem, expected);
    }
    let mut register = |flag, version: Version| {
        fake.set(|fake| fake.version = version.code().cast_signed());
        let comm = fake.nccl().init_all(&[0]).unwrap().remove(0);
        calls(&fake);
        register_window(&comm, &mut buffer, flag).map(|_| calls(&fake).remove(0))
    };
    for (flag, bits, since) in [
        (WindowFlags::DEFAULT, 0, "2.27.3"),
        (WindowFlags::COLL_SYMMETRIC, 1, "2.27.3"),
        (WindowFlags::STRICT_ORDERING, 2, "2.29.7"),
        (WindowFlags::GIN_ONLY, 4, "2.32.3"),
        (WindowFlags::CFT_COUNTED, 8, "2.32.3"),
    ] {
        let since: Version = since.parse().unwrap();
        let call = register(flag, since).unwrap();
        assert!(call.ends_with(&format!(", 32, &, {bits})")), "{call}");
        if bits > 1 {
            let before = register(flag, Version { patch: since.patch - 1, ..since }).unwrap_err();
            assert!(matches!(before, Error::Unsupported { since: needs, .. } if needs == since), "{before}");
        }
    }
}

#[test]
fn window_of_a_group_is_active_after_its_end() {
    let (fake, nccl, comm) = open(false);
    let mut buffer = alloc(&nccl);
    let window = nccl.group(|g| {
        // SAFETY: the fake accesses no memory.
        let window = unsafe { g.register_window(&comm, &mut buffer, WindowFlags::DEFAULT) }?;
        assert!(!window.is_active());
        Ok(window)
    });
    let window = window.unwrap();
    assert!(window.is_active());
    assume_idle(&mut buffer);
    drop((window, buffer));
    assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW, DEREGISTER_WINDOW, FREE]);

    // Dropped before NCCL has written the window.
    let problem = "deregister: the group that registers the window has failed or has not ended";
    let mut buffer = alloc(&nccl);
    nccl.group(|g| {
        // SAFETY: as above.
        let window = unsafe { g.register_window(&comm, &mut buffer, WindowFlags::DEFAULT) }?;
        assume_idle(&mut buffer);
        assert_eq!(text(window.deregister()), problem);
        Ok(())
    })
    .unwrap();
    drop(buffer);
    assert_eq!(calls(&fake), [ALLOC, REGISTER_WINDOW, DEREGISTER_WINDOW, FREE]);
    assert_eq!(fake.violations(), [""; 0]);

    // The memory of a window of a failed group is kept.
    let (mut buffer, mut kept) = (alloc(&nccl), None);
    let failed = nccl.group(|g| {
        // SAFETY: as above.
        kept = Some(unsafe { g.register_window(&comm, &mut buffer, WindowFlags::DEFAULT) }?);
        Err::<(), _>(Error::Aborted { call: "the closure" })
    });
    failed.unwrap_err();
    assume_idle(&mut buffer);
    assert_eq!(text(kept.unwrap().deregister()), problem);
    drop(buffer);
    assert!(!calls(&fake).contains(&FREE.into()));
}

#[test]
fn one_sided_operations_check_their_arguments() {
    let (fake, nccl, _) = &open(false);
    fake.set(|fake| fake.size_and_rank = (2, 0));
    let comms = nccl.init_all(&[0, 1]).unwrap();
    let comm = &comms[0];
    let [mut buffer, mut elsewhere] = [(); 2].map(|()| alloc(nccl));
    let window = window_of(comm, &mut buffer);
    let elsewhere = window_of(&comms[1], &mut elsewhere);
    calls(fake);
    let first = Signal::default();
    let put = |peer, place, signal| text(comm.put_signal(&buffer, peer, place, signal, STREAM));
    let wait = |count, peer| text(comm.wait_signal(&[WaitSignal { count, peer, signal: first }], STREAM));
    let far = Signal { index: 1 << 31, context: 0 };
    let other_context = Signal { index: 0, context: u32::MAX };
    let options = libnccl::config::CollectiveConfig::new().max_ctas(1);
    let with_options = CallOptions::on(STREAM).config(&options);
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
        (text(comm.signal(1, other_context, STREAM)), "signal: context 4294967295 is beyond 2147483647"),
        (text(comm.wait_signal(&[], STREAM)), "wait_signal: no signals; expected at least one"),
        (wait(0, 0), "wait_signal: the count is 0; expected at least 1"),
        (wait(1, 9), "wait_signal: peer 9 is not below 2, the communicator's size"),
    ] {
        assert_eq!(problem, expected);
    }
    assert!(text(comm.signal(1, first, with_options)).contains("takes no options"));
    assert!(calls(fake).is_empty());
}

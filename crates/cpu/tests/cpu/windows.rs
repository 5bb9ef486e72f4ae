//! Registration of buffers and of windows.

use std::ffi::c_void;
use std::ptr;

use crate::common::memory::Memory;
use crate::common::processes::{self, RankProcess};
use crate::common::watchdog::Watchdog;
use crate::common::{
    self, ARGUMENT, Address, Comm, Mode, OK, USAGE, alone, assert_last_error, init, last_error, on_threads,
    together,
};
use libnccl::sys::{ncclComm_t, ncclResult_t, ncclWindow_t};

fn register(comm: ncclComm_t, memory: &Memory, win: *mut ncclWindow_t, flags: i32) -> ncclResult_t {
    nccl!(ncclCommWindowRegister(comm, memory.start.cast(), memory.bytes(), win, flags))
}

fn deregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t {
    nccl!(ncclCommWindowDeregister(comm, win))
}

fn user_pointer(comm: ncclComm_t, win: ncclWindow_t) -> Result<*mut c_void, ncclResult_t> {
    let mut pointer = ptr::dangling_mut();
    match nccl!(ncclWinGetUserPtr(comm, win, &mut pointer)) {
        OK => Ok(pointer),
        code => Err(code),
    }
}

#[test]
fn buffer_deregisters_exactly_once() {
    let _alone = alone();
    let comms = init(Mode::Group, 2);
    let (one, two) = (comms[0].0, comms[1].0);
    let mut buffer = [0u8; 100];
    let mut register = |comm, size| {
        let mut handle = ptr::null_mut();
        let code = nccl!(ncclCommRegister(comm, buffer.as_mut_ptr().cast(), size, &mut handle));
        assert_eq!((code, handle.is_null()), (OK, false));
        handle
    };
    let handles = [register(one, 100), register(one, 100), register(one, 7), register(two, 100)];
    for (index, handle) in handles.iter().enumerate() {
        assert!(!handles[..index].contains(handle), "two registrations have one handle");
    }
    assert_eq!(nccl!(ncclCommDeregister(one, handles[3])), USAGE, "another communicator's");
    assert_last_error("is not a registration of this communicator");
    for handle in &handles[..3] {
        assert_eq!(nccl!(ncclCommDeregister(one, *handle)), OK);
        assert_eq!(nccl!(ncclCommDeregister(one, *handle)), USAGE, "already deregistered");
    }
    let again = register(one, 100);
    assert!(!handles.contains(&again), "a handle is reused");
    // One buffer is still registered.
    comms.into_iter().for_each(Comm::destroy);
    assert_eq!(nccl!(ncclCommDeregister(two, handles[3])), ARGUMENT);
}

#[test]
fn register_with_invalid_arguments_fails() {
    let _alone = alone();
    let comms = init(Mode::Group, 1);
    let Comm(comm) = comms[0];
    let (mut buffer, mut handle) = ([0u8; 10], ptr::null_mut());
    let place = buffer.as_mut_ptr().cast();
    let null = ptr::null_mut();
    assert_eq!(nccl!(ncclCommRegister(ptr::null_mut(), place, 10, &mut handle)), ARGUMENT);
    assert_eq!(nccl!(ncclCommRegister(comm, null, 10, &mut handle)), ARGUMENT);
    assert_eq!(nccl!(ncclCommRegister(comm, place, usize::MAX, &mut handle)), ARGUMENT);
    assert_last_error("invalid buffer size 18446744073709551615 at");
    assert_eq!(nccl!(ncclCommRegister(comm, place, 10, ptr::null_mut())), ARGUMENT);
    assert_eq!(nccl!(ncclCommDeregister(ptr::null_mut(), handle)), ARGUMENT);
    assert_eq!(nccl!(ncclCommDeregister(comm, null)), OK, "as a registration that NCCL skips is NULL");
    assert_eq!(nccl!(ncclCommDeregister(comm, place)), USAGE);
    assert!(handle.is_null());
    comms[0].destroy();
}

#[test]
fn window_register_gives_every_rank_a_window() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    for (mode, n) in [(Mode::Group, 1), (Mode::Group, 3), (Mode::Threads, 2), (Mode::Threads, 4)] {
        let comms = init(mode, n);
        let memories: Vec<Memory> = (0..n).map(|rank| Memory::new(1024 * (rank + 1))).collect();
        let mut windows: Vec<Vec<ncclWindow_t>> = vec![vec![ptr::null_mut(); 2]; n];
        let slots = common::addresses(&mut windows);
        for index in 0..2 {
            together(mode, &comms, |rank, comm| {
                let Address(slot) = slots[rank];
                register(comm, &memories[rank], slot.wrapping_add(index), 3)
            });
        }
        for (rank, Comm(comm)) in comms.iter().enumerate() {
            let [one, two] = windows[rank][..] else { panic!() };
            assert_eq!([one.is_null(), two.is_null()], [false; 2], "rank {rank}");
            assert_ne!(one, two, "rank {rank}");
            assert_eq!(user_pointer(*comm, one), Ok(memories[rank].start.cast()));
            assert_eq!(deregister(*comm, one), OK);
            assert_eq!(user_pointer(*comm, one), Err(ARGUMENT), "already deregistered");
            assert_eq!(deregister(*comm, one), ARGUMENT);
            assert_eq!(user_pointer(*comm, two), Ok(memories[rank].start.cast()));
            assert_eq!(deregister(*comm, two), OK);
        }
        comms.into_iter().for_each(Comm::destroy);
    }
}

#[test]
fn window_of_single_rank_accepts_any_memory() {
    #[repr(align(4096))]
    struct Page([u8; 4096]);

    let comms = init(Mode::Group, 1);
    let (Comm(comm), mut page, mut win) = (comms[0], Page([0; 4096]), ptr::null_mut());
    let place: *mut c_void = ptr::from_mut(&mut page.0).cast();
    assert_eq!(nccl!(ncclCommWindowRegister(comm, place, 4096, &mut win, 0)), OK);
    assert_eq!(user_pointer(comm, win), Ok(place));
    comms[0].destroy();
}

#[test]
fn window_calls_with_invalid_arguments_fail() {
    let _alone = alone();
    let comms = init(Mode::Group, 2);
    let (Comm(comm), memory, mut win) = (comms[0], Memory::new(4096), ptr::null_mut());
    let at = |offset: usize| memory.start.wrapping_byte_add(offset).cast();
    let mut with = |place: *mut c_void, size, flags| {
        let code = nccl!(ncclCommWindowRegister(comm, place, size, &mut win, flags));
        assert!(win.is_null());
        code
    };
    assert_eq!(with(ptr::null_mut(), 4096, 0), ARGUMENT);
    assert_eq!(with(at(0), 0, 0), ARGUMENT);
    assert_eq!(with(at(0), usize::MAX, 0), ARGUMENT);
    for offset in [1, 64, 2048] {
        assert_eq!(with(at(offset), 64, 0), ARGUMENT);
        assert_last_error("has to be a multiple of 4096");
    }
    for flags in [0x5, 0x9, 0xf, 0x15, -1] {
        assert_eq!(with(at(0), 4096, flags), ARGUMENT);
        assert_last_error("cannot be combined with NCCL_WIN_GIN_ONLY");
    }
    assert_eq!(register(comm, &memory, ptr::null_mut(), 0), ARGUMENT);
    assert_eq!(register(ptr::null_mut(), &memory, &mut win, 0), ARGUMENT);
    assert_eq!(deregister(ptr::null_mut(), win), ARGUMENT);
    assert_eq!(deregister(comm, ptr::null_mut()), OK, "a NULL window is ignored");
    assert_eq!(deregister(comm, ptr::dangling_mut()), ARGUMENT);
    assert_eq!(user_pointer(comm, ptr::null_mut()), Err(ARGUMENT));
    assert_eq!(user_pointer(comm, at(0).cast()), Err(ARGUMENT));
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn handle_that_stands_for_something_else_is_named() {
    let _alone = alone();
    let (_watchdog, comms, memory) = (Watchdog::new(), init(Mode::Group, 2), Memory::new(1024));
    let other = comms[1].0.cast();
    let alone = init(Mode::Group, 1)[0];
    let (comm, mut registration, mut window) = (alone.0, ptr::null_mut(), ptr::null_mut());
    assert_eq!(nccl!(ncclCommRegister(comm, memory.start.cast(), 4096, &mut registration)), OK);
    assert_eq!(register(comm, &memory, &mut window, 0), OK);
    let deregister_buffer = |handle| nccl!(ncclCommDeregister(comm, handle));
    let deregister_window = |handle: *mut c_void| deregister(comm, handle.cast());
    let query_window = |handle: *mut c_void| user_pointer(comm, handle.cast()).unwrap_err();
    let count = |handle: *mut c_void| nccl!(ncclCommCount(handle.cast(), &mut 0));
    let destroy = |handle: *mut c_void| nccl!(ncclCommDestroy(handle.cast()));
    let calls: [(&str, &dyn Fn(*mut c_void) -> ncclResult_t); 5] = [
        ("is not a registration of this communicator", &deregister_buffer),
        ("is not a window of this communicator", &deregister_window),
        ("is not a window of this communicator", &query_window),
        ("is not a communicator", &count),
        ("is not a communicator", &destroy),
    ];
    for (handle, kind) in [(registration, "registration"), (window.cast(), "window"), (other, "communicator")]
    {
        for (refusal, call) in calls.iter().filter(|(refusal, _)| !refusal.contains(&format!("a {kind}"))) {
            assert_ne!(call(handle), OK);
            assert_last_error(&format!("{handle:p} {refusal}: it is a {kind}"));
        }
    }
    // Neither one that is gone, nor a number that was never given.
    assert_eq!((deregister_buffer(registration), deregister_window(window.cast())), (OK, OK));
    for (handle, kind) in [(registration, "window"), (window.cast(), "registration")] {
        assert_ne!(if kind == "window" { query_window(handle) } else { deregister_buffer(handle) }, OK);
        assert_last_error(if kind == "window" { "it is a registration" } else { "it is a window" });
    }
    assert_ne!(deregister_buffer(ptr::without_provenance_mut(0xffff_fff2)), OK);
    assert!(last_error().ends_with("is not a registration of this communicator"), "{}", last_error());
    [comms, vec![alone]].concat().into_iter().for_each(Comm::destroy);
}

#[test]
fn window_of_other_comm_is_invalid_argument() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Group, 2);
    let memories = [Memory::new(1024), Memory::new(1024)];
    let mut windows = vec![vec![ptr::null_mut()], vec![ptr::null_mut()]];
    let slots = common::addresses(&mut windows);
    together(Mode::Group, &comms, |rank, comm| register(comm, &memories[rank], slots[rank].0, 0));
    assert_eq!(user_pointer(comms[0].0, windows[1][0]), Err(ARGUMENT));
    assert_last_error("is not a window of this communicator: it is another communicator's, or was destroyed");
    assert_eq!(deregister(comms[0].0, windows[1][0]), ARGUMENT);
    // Windows are deregistered with their communicator.
    comms.iter().for_each(|comm| comm.destroy());
    assert_eq!(deregister(comms[0].0, windows[0][0]), ARGUMENT);
}

#[test]
fn window_register_mismatch_names_both_ranks() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Threads, 2);
    let codes = on_threads(2, |rank| {
        let (memory, mut win) = (Memory::new(1024), ptr::null_mut());
        let code = register(comms[rank].0, &memory, &mut win, rank as i32);
        assert!(win.is_null());
        code
    });
    assert_eq!(codes, [USAGE; 2]);
    let text = last_error();
    assert!(text.contains("different winFlags: rank 1 with 0x1, rank 0 with 0x0"), "{text}");
    let codes = on_threads(2, |rank| {
        let (memory, mut win, Comm(comm)) = (Memory::new(1024), ptr::null_mut(), comms[rank]);
        match rank {
            0 => register(comm, &memory, &mut win, 0),
            _ => nccl!(ncclCommSuspend(comm, 1)),
        }
    });
    assert_eq!(codes, [USAGE; 2]);
    let text = last_error();
    assert!(text.contains("rank 1 called ncclCommSuspend, rank 0 called ncclCommWindowRegister"), "{text}");
    comms.into_iter().for_each(Comm::destroy);
}

rank_tasks! {
    "register_private" => register_private_memory_at_rank_1,
}

fn register_private_memory_at_rank_1(process: &RankProcess) {
    let Comm(comm) = process.join();
    let (memory, mut win) = (Memory::new(10_000), ptr::dangling_mut());
    let private = vec![0u8; 3 * 4096];
    let aligned = private.as_ptr().wrapping_add(private.as_ptr().align_offset(4096));
    let place = if process.rank() == 1 { aligned.cast_mut().cast() } else { memory.start.cast() };
    assert_eq!(nccl!(ncclCommWindowRegister(comm, place, 4096, &mut win, 0)), OK);
    assert!(win.is_null(), "a window of private memory");
    assert_eq!(deregister(comm, win), OK);
    Comm(comm).destroy();
}

#[test]
fn window_with_private_memory_is_null() {
    let _watchdog = Watchdog::new();
    processes::run("register_private", 3);
}

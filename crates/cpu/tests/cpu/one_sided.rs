//! Windows, puts and signals: checks of the CPU backend, and peers that exit.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::memory::Memory;
use crate::common::processes::{self, RankProcess};
use crate::common::watchdog::Watchdog;
use crate::common::{
    self, ARGUMENT, Comm, I32, Mode, OK, REMOTE, STREAM, USAGE, alone, assert_last_error, init, last_error,
    on_threads, together, wait_async,
};
use libnccl::sys::{ncclComm_t, ncclConfig_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t};

fn register(comm: ncclComm_t, memory: &Memory, win: *mut ncclWindow_t) -> ncclResult_t {
    nccl!(ncclCommWindowRegister(comm, memory.start.cast(), memory.bytes(), win, 1))
}

/// Puts the elements of `from` into `peer`'s part of a window, from element `to` on.
fn put(from: &[i32], peer: usize, win: ncclWindow_t, to: usize, comm: ncclComm_t) -> ncclResult_t {
    let (place, offset) = (from.as_ptr().cast(), to * size_of::<i32>());
    nccl!(ncclPutSignal(place, from.len(), I32, peer as i32, win, offset, 0, 0, 0, comm, STREAM))
}

fn signal(peer: usize, index: i32, context: i32, comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclSignal(peer as i32, index, context, 0, comm, STREAM))
}

fn description(count: i32, peer: usize) -> ncclWaitSignalDesc_t {
    ncclWaitSignalDesc_t { opCnt: count, peer: peer as i32, sigIdx: 0, ctx: 0 }
}

fn wait(descriptions: &mut [ncclWaitSignalDesc_t], comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclWaitSignal(descriptions.len() as i32, descriptions.as_mut_ptr(), comm, STREAM))
}

/// Creates communicators with a window each: `2 * count` elements per rank, half of them to put from.
fn with_windows(mode: Mode, ranks: usize, count: usize) -> (Vec<Comm>, Vec<Memory>, Vec<Window>) {
    let comms = init(mode, ranks);
    let memories: Vec<Memory> = (0..ranks).map(|_| Memory::new(2 * count)).collect();
    let mut windows = vec![vec![ptr::null_mut()]; ranks];
    let slots = common::addresses(&mut windows);
    together(mode, &comms, |rank, comm| register(comm, &memories[rank], slots[rank].0));
    let windows = windows.into_iter().map(|window| Window(window[0])).collect();
    (comms, memories, windows)
}

#[derive(Debug, Clone, Copy)]
struct Window(ncclWindow_t);

// SAFETY: handles are numbers.
unsafe impl Send for Window {}
// SAFETY: handles are numbers.
unsafe impl Sync for Window {}

#[test]
fn signals_beyond_the_limit_are_refused_when_used() {
    let _alone = alone();
    let (mut comm, mut config) = (ptr::null_mut(), ncclConfig_t::initializer());
    (config.numRmaCtx, config.numRmaSig, config.rmaEagerInit) = (i32::MAX, 5, 1);
    assert_eq!(nccl!(ncclCommInitRankConfig(&mut comm, 1, common::unique_id(), 0, &mut config)), OK);
    assert_eq!(signal(0, 0, 3, comm), OK);
    for (index, context) in [(1, 3), (0, 4), (4, i32::MAX - 1)] {
        assert_eq!(signal(0, index, context, comm), ARGUMENT);
        assert_last_error("with numRmaSig 5 in the config, and there are 16 here");
    }
    Comm(comm).destroy();
}

#[test]
fn put_into_deregistered_part_is_invalid_usage() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    let (comms, memories, windows) = with_windows(Mode::Group, 3, 2);
    assert_eq!(nccl!(ncclCommWindowDeregister(comms[1].0, windows[1].0)), OK);
    let mine = memories[0].elements();
    mine.fill(7);
    assert_eq!(put(&mine[..2], 1, windows[0].0, 0, comms[0].0), USAGE);
    assert_last_error("rank 1 has deregistered its part of the window");
    assert_eq!(memories[1].elements(), [0; 4]);
    // In a group, where the others' puts still happen.
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(put(&mine[..2], 1, windows[0].0, 0, comms[0].0), OK);
    assert_eq!(put(&mine[..2], 2, windows[0].0, 0, comms[0].0), OK);
    assert_eq!(nccl!(ncclGroupEnd()), USAGE);
    assert_eq!((memories[1].elements(), memories[2].elements()), (&mut [0; 4][..], &mut [7, 7, 0, 0][..]));
    assert_eq!(wait(&mut [description(1, 0)], comms[2].0), OK);
    // Another window of the same memory is another window.
    let mut again = vec![vec![ptr::null_mut()]; 3];
    let slots = common::addresses(&mut again);
    together(Mode::Group, &comms, |rank, comm| register(comm, &memories[rank], slots[rank].0));
    assert_eq!(put(&mine[..2], 1, windows[0].0, 0, comms[0].0), USAGE);
    assert_eq!(put(&mine[..2], 1, again[0][0], 0, comms[0].0), OK);
    assert_eq!(memories[1].elements(), [7, 7, 0, 0]);
    // Its own part too.
    assert_eq!(nccl!(ncclCommWindowDeregister(comms[2].0, again[2][0])), OK);
    assert_eq!(put(&memories[2].elements()[..2], 2, windows[2].0, 2, comms[2].0), OK);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn put_into_window_of_ended_rank_is_remote_error() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    for how in 0..3 {
        let (comms, memories, windows) = with_windows(Mode::Group, 2, 2);
        memories[0].elements().fill(7);
        let text = match how {
            0 => {
                comms[1].destroy();
                "rank 1 has left"
            }
            1 => {
                assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
                "rank 1 aborted the communicator"
            }
            _ => {
                assert_eq!(nccl!(ncclCommFinalize(comms[1].0)), OK);
                "rank 1 has left"
            }
        };
        assert_eq!(put(&memories[0].elements()[..2], 1, windows[0].0, 0, comms[0].0), REMOTE);
        assert_last_error(text);
        assert_eq!(memories[1].elements(), [0; 4]);
        comms[0].destroy();
        if how == 2 {
            comms[1].destroy();
        }
    }
}

/// A rank whose registration failed may free its memory, although another rank's registration succeeds later.
#[test]
fn put_after_peers_failed_registration_is_remote_error() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    let id = common::unique_id();
    let comms = on_threads(2, |rank| {
        let (mut comm, mut config) = (ptr::null_mut(), ncclConfig_t::initializer());
        config.blocking = rank as i32;
        nccl!(ncclCommInitRankConfig(&mut comm, 2, id, rank as i32, &mut config));
        assert_eq!(wait_async(comm), OK);
        Comm(comm)
    });
    let memories = [Memory::new(4), Memory::new(4)];
    let (mut given_up, mut win) = (ptr::null_mut(), ptr::null_mut());
    assert_eq!(register(comms[0].0, &memories[0], &mut given_up), OK);
    // It waits for rank 1 by then.
    thread::sleep(Duration::from_millis(200));
    assert_eq!(nccl!(ncclCommAbort(comms[0].0)), OK);
    memories[1].elements().fill(7);
    match register(comms[1].0, &memories[1], &mut win) {
        OK => assert_eq!(put(&memories[1].elements()[..2], 0, win, 0, comms[1].0), REMOTE),
        code => assert_eq!(code, REMOTE, "rank 0 was too slow"),
    }
    assert_last_error("rank 0 aborted the communicator");
    assert_eq!(memories[0].elements(), [0; 4]);
    comms[1].destroy();
}

#[test]
fn too_many_windows_name_the_rank() {
    let _alone = alone();
    let comms = init(Mode::Group, 1);
    let (Comm(comm), memory) = (comms[0], Memory::new(1));
    let mut windows = [ptr::null_mut(); 1025];
    for win in &mut windows[..1024] {
        assert_eq!(register(comm, &memory, win), OK);
    }
    assert_eq!(register(comm, &memory, &mut windows[1024]), USAGE);
    assert_last_error("rank 0 has 1024 windows already: deregister some of them");
    assert_eq!(nccl!(ncclCommWindowDeregister(comm, windows[500])), OK);
    assert_eq!(register(comm, &memory, &mut windows[1024]), OK);
    comms[0].destroy();
}

#[test]
fn wait_signal_for_departed_rank_returns_remote_error() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    let (comms, _memories, _) = with_windows(Mode::Group, 3, 1);
    assert_eq!(signal(0, 0, 0, comms[1].0), OK);
    comms[1].destroy();
    assert_eq!(wait(&mut [description(1, 1)], comms[0].0), OK, "an earlier signal still counts");
    assert_eq!(wait(&mut [description(1, 1)], comms[0].0), REMOTE);
    assert_last_error("rank 1 has left");
    assert_eq!(signal(1, 0, 0, comms[2].0), REMOTE);
    [comms[0], comms[2]].into_iter().for_each(Comm::destroy);
}

rank_tasks! {
    "register_private" => register_private_memory_at_rank_1,
    "wait_for_exited_rank" => wait_for_exited_rank,
}

/// Exits as rank 1, and waits for its signal as rank 0.
fn wait_for_exited_rank(process: &RankProcess) {
    let Comm(comm) = process.join();
    let (memory, mut win) = (Memory::new(2 * process.ranks * 3), ptr::null_mut());
    assert_eq!(register(comm, &memory, &mut win), OK, "{}", last_error());
    assert!(!win.is_null());
    if process.rank() == 1 {
        std::process::exit(0);
    }
    let start = Instant::now();
    assert_eq!(wait(&mut [description(1, 1)], comm), REMOTE);
    assert_last_error("rank 1 died");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn wait_signal_for_dead_process_returns_remote_error() {
    let _watchdog = Watchdog::new();
    processes::run("wait_for_exited_rank", 2);
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
fn handle_of_another_kind_is_named() {
    let _alone = alone();
    let (_watchdog, comms, memory) = (Watchdog::new(), init(Mode::Group, 2), Memory::new(1024));
    let other = comms[1].0.cast();
    let alone = init(Mode::Group, 1)[0];
    let (comm, mut registration, mut window) = (alone.0, ptr::null_mut(), ptr::null_mut());
    assert_eq!(nccl!(ncclCommRegister(comm, memory.start.cast(), 4096, &mut registration)), OK);
    assert_eq!(register(comm, &memory, &mut window), OK);
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
    // Neither a handle that was deregistered, nor a number that never was a handle.
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
fn window_register_mismatch_names_both_ranks() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Threads, 2);
    let codes = on_threads(2, |rank| {
        let (memory, mut win) = (Memory::new(1024), ptr::null_mut());
        let place = memory.start.cast();
        let code = nccl!(ncclCommWindowRegister(comms[rank].0, place, 4096, &mut win, rank as i32));
        assert!(win.is_null());
        code
    });
    assert_eq!(codes, [USAGE; 2]);
    let text = last_error();
    assert!(text.contains("different winFlags: rank 1 with 0x1, rank 0 with 0x0"), "{text}");
    let codes = on_threads(2, |rank| {
        let (memory, mut win, Comm(comm)) = (Memory::new(1024), ptr::null_mut(), comms[rank]);
        match rank {
            0 => register(comm, &memory, &mut win),
            _ => nccl!(ncclCommSuspend(comm, 1)),
        }
    });
    assert_eq!(codes, [USAGE; 2]);
    let text = last_error();
    assert!(text.contains("rank 1 called ncclCommSuspend, rank 0 called ncclCommWindowRegister"), "{text}");
    comms.into_iter().for_each(Comm::destroy);
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

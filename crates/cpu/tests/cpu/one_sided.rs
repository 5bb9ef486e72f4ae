//! Windows, puts and signals: checks of the CPU backend, and peers that exit.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::thread;
use std::time::Duration;

use crate::common::processes::{self, RankProcess};
use crate::common::{
    ARGUMENT, Comm, I32, Memory, OK, REMOTE, STREAM, USAGE, alone, assert_last_error, in_group, init,
    init_nonblocking, init_rank, init_with, last_error, on_threads, split, unique_id, wait_async,
};
use libnccl::sys::{ncclComm_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t};

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

fn wait(peer: usize, comm: ncclComm_t) -> ncclResult_t {
    let mut one = ncclWaitSignalDesc_t { opCnt: 1, peer: peer as i32, sigIdx: 0, ctx: 0 };
    nccl!(ncclWaitSignal(1, &mut one, comm, STREAM))
}

/// Registers each rank's memory as its part of a window.
fn windows(comms: &[Comm], memories: &[Memory]) -> Vec<ncclWindow_t> {
    let mut windows = vec![ptr::null_mut(); comms.len()];
    let code = in_group(|| {
        for ((comm, memory), window) in comms.iter().zip(memories).zip(&mut windows) {
            assert_eq!(register(comm.0, memory, window), OK, "{}", last_error());
        }
    });
    assert_eq!(code, OK, "{}", last_error());
    windows
}

/// Creates communicators of one thread with a window each.
fn with_windows(ranks: usize, count: usize) -> (Vec<Comm>, Vec<Memory>, Vec<ncclWindow_t>) {
    let (comms, memories) = (init(ranks), (0..ranks).map(|_| Memory::new(count)).collect::<Vec<_>>());
    let windows = windows(&comms, &memories);
    (comms, memories, windows)
}

#[test]
fn signals_beyond_the_limit_are_refused_when_used() {
    let _alone = alone();
    let (_, Comm(comm)) = init_with(unique_id(), 1, 0, |config| {
        (config.numRmaCtx, config.numRmaSig, config.rmaEagerInit) = (i32::MAX, 5, 1);
    });
    assert_eq!(signal(0, 0, 3, comm), OK);
    for (index, context) in [(1, 3), (0, 4), (4, i32::MAX - 1)] {
        assert_eq!(signal(0, index, context, comm), ARGUMENT);
        assert_last_error("with numRmaSig 5 in the config, and there are 16 here");
    }
    Comm(comm).destroy();
}

#[test]
fn child_without_a_config_has_its_parents_options() {
    let _alone = alone();
    let (_, parent) = init_with(unique_id(), 1, 0, |config| {
        (config.numRmaCtx, config.numRmaSig, config.rmaEagerInit) = (2, 3, 1);
    });
    let child = split(parent.0, 0, 0).unwrap();
    assert_eq!(signal(0, 2, 1, child.0), OK);
    assert_eq!([signal(0, 3, 1, child.0), signal(0, 2, 2, child.0)], [ARGUMENT; 2]);
    [child, parent].into_iter().for_each(Comm::destroy);
}

#[test]
fn put_from_a_window_that_is_not_symmetric_is_invalid_argument() {
    let _alone = alone();
    let (comms, _memories, windows) = with_windows(1, 4);
    let (Comm(comm), local) = (comms[0], Memory::new(4));
    assert_eq!(put(local.elements(), 0, windows[0], 0, comm), ARGUMENT);
    let mut window = ptr::null_mut();
    let place = local.start.cast();
    assert_eq!(nccl!(ncclCommWindowRegister(comm, place, local.bytes(), &mut window, 0)), OK);
    assert_eq!(put(local.elements(), 0, windows[0], 0, comm), ARGUMENT);
    assert_last_error("NCCL_WIN_COLL_SYMMETRIC");
    comms[0].destroy();
}

#[test]
fn put_into_deregistered_part_is_invalid_usage() {
    let _alone = alone();
    let (comms, memories, first) = with_windows(3, 4);
    assert_eq!(deregister(comms[1].0, first[1]), OK);
    let mine = memories[0].elements();
    mine.fill(7);
    assert_eq!(put(&mine[..2], 1, first[0], 0, comms[0].0), USAGE);
    assert_last_error("rank 1 has deregistered its part of the window");
    // In a group, where the others' puts still happen.
    let code = in_group(|| {
        [1, 2].iter().for_each(|peer| assert_eq!(put(&mine[..2], *peer, first[0], 0, comms[0].0), OK));
    });
    assert_eq!(code, USAGE);
    assert_eq!((memories[1].elements(), memories[2].elements()), (&mut [0; 4][..], &mut [7, 7, 0, 0][..]));
    assert_eq!(wait(0, comms[2].0), OK);
    // Another window of the same memory is another window.
    let again = windows(&comms, &memories);
    assert_eq!(put(&mine[..2], 1, first[0], 0, comms[0].0), USAGE);
    assert_eq!(put(&mine[..2], 1, again[0], 0, comms[0].0), OK);
    assert_eq!(memories[1].elements(), [7, 7, 0, 0]);
    // Its own part too.
    assert_eq!(deregister(comms[2].0, again[2]), OK);
    assert_eq!(put(&memories[2].elements()[..2], 2, first[2], 2, comms[2].0), OK);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn put_into_window_of_ended_rank_and_signals_are_remote_errors() {
    let _alone = alone();
    let ends: [(&dyn Fn(ncclComm_t) -> ncclResult_t, &str); 3] = [
        (&|comm| nccl!(ncclCommDestroy(comm)), "rank 1 has finalized or destroyed"),
        (&|comm| nccl!(ncclCommAbort(comm)), "rank 1 aborted the communicator"),
        (&|comm| nccl!(ncclCommFinalize(comm)), "rank 1 has finalized or destroyed"),
    ];
    for (end, text) in ends {
        let (comms, memories, windows) = with_windows(2, 2);
        memories[0].elements().fill(7);
        assert_eq!(signal(0, 0, 0, comms[1].0), OK);
        assert_eq!(end(comms[1].0), OK);
        assert_eq!(wait(1, comms[0].0), OK, "an earlier signal still counts");
        assert_eq!([wait(1, comms[0].0), signal(1, 0, 0, comms[0].0)], [REMOTE; 2]);
        assert_last_error(text);
        assert_eq!(put(memories[0].elements(), 1, windows[0], 0, comms[0].0), REMOTE);
        assert_last_error(text);
        assert_eq!(memories[1].elements(), [0; 2]);
        comms[0].destroy();
    }
}

/// A rank whose registration failed may free its memory, although another rank's registration succeeds later.
#[test]
fn put_after_peers_failed_registration_is_remote_error() {
    let _alone = alone();
    let (id, memories) = (unique_id(), [Memory::new(4), Memory::new(4)]);
    let first = init_nonblocking(id, 2, 0);
    let second = init_rank(id, 2, 1).unwrap();
    assert_eq!(wait_async(first.0), OK);
    let (mut given_up, mut window) = (ptr::null_mut(), ptr::null_mut());
    assert_eq!(register(first.0, &memories[0], &mut given_up), OK);
    // It waits for rank 1 by then.
    thread::sleep(Duration::from_millis(200));
    assert_eq!(nccl!(ncclCommAbort(first.0)), OK);
    memories[1].elements().fill(7);
    match register(second.0, &memories[1], &mut window) {
        OK => assert_eq!(put(&memories[1].elements()[..2], 0, window, 0, second.0), REMOTE),
        code => assert_eq!(code, REMOTE, "rank 0 was too slow"),
    }
    assert_last_error("rank 0 aborted the communicator");
    assert_eq!(memories[0].elements(), [0; 4]);
    second.destroy();
}

#[test]
fn too_many_windows_name_the_rank() {
    let _alone = alone();
    let comms = init(1);
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

rank_tasks!(register_private_memory_at_rank_1);

fn deregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t {
    nccl!(ncclCommWindowDeregister(comm, win))
}

#[test]
fn handle_of_another_kind_is_named() {
    let _alone = alone();
    let (Comm(comm), memory) = (init(1)[0], Memory::new(1024));
    let (mut registration, mut window) = (ptr::null_mut(), ptr::null_mut());
    assert_eq!(nccl!(ncclCommRegister(comm, memory.start.cast(), 4096, &mut registration)), OK);
    assert_eq!(register(comm, &memory, &mut window), OK);
    let deregister_buffer = |handle| nccl!(ncclCommDeregister(comm, handle));
    let deregister_window = |handle: *mut c_void| deregister(comm, handle.cast());
    let user_pointer =
        |handle: *mut c_void| nccl!(ncclWinGetUserPtr(comm, handle.cast(), &mut ptr::null_mut()));
    let count = |handle: *mut c_void| nccl!(ncclCommCount(handle.cast(), &mut 0));
    let calls: [(&str, &dyn Fn(*mut c_void) -> ncclResult_t); 4] = [
        ("is not a registration of this communicator", &deregister_buffer),
        ("is not a window of this communicator", &deregister_window),
        ("is not a window of this communicator", &user_pointer),
        ("is not a communicator", &count),
    ];
    let handles = [(registration, "registration"), (window.cast(), "window"), (comm.cast(), "communicator")];
    for (handle, kind) in handles {
        for (refusal, call) in calls.iter().filter(|(refusal, _)| !refusal.contains(&format!("a {kind}"))) {
            assert_ne!(call(handle), OK);
            assert_last_error(&format!("{handle:p} {refusal}: it is a {kind}"));
        }
    }
    // Neither a handle that was deregistered, nor a number that never was a handle.
    assert_eq!((deregister_buffer(registration), deregister(comm, window)), (OK, OK));
    assert_ne!(user_pointer(registration), OK);
    assert_last_error("it is a registration");
    assert_ne!(deregister_buffer(ptr::without_provenance_mut(0xffff_fff2)), OK);
    assert!(last_error().ends_with("is not a registration of this communicator"), "{}", last_error());
    Comm(comm).destroy();
}

#[test]
fn window_register_mismatch_names_both_ranks() {
    let _alone = alone();
    let comms = init(2);
    let codes = on_threads(2, |rank| {
        let (memory, mut window) = (Memory::new(1024), ptr::null_mut());
        let (place, Comm(comm)) = (memory.start.cast(), comms[rank]);
        let code = nccl!(ncclCommWindowRegister(comm, place, 4096, &mut window, rank as i32));
        assert!(window.is_null());
        code
    });
    assert_eq!(codes, [USAGE; 2]);
    assert_last_error("different winFlags: rank 1 with 0x1, rank 0 with 0x0");
    let codes = on_threads(2, |rank| {
        let (memory, mut window, Comm(comm)) = (Memory::new(1024), ptr::null_mut(), comms[rank]);
        if rank == 0 { register(comm, &memory, &mut window) } else { nccl!(ncclCommSuspend(comm, 1)) }
    });
    assert_eq!(codes, [USAGE; 2]);
    assert_last_error("rank 1 called ncclCommSuspend, rank 0 called ncclCommWindowRegister");
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
    processes::run("register_private_memory_at_rank_1", [[0], [1], [2]], &[]);
}

//! Windows, puts into them, and signals.

use std::ffi::c_int;
use std::ptr;

use libnccl::sys::{
    NCCL_WIN_COLL_SYMMETRIC, ncclComm_t, ncclConfig_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t,
};

use crate::implementation::Implementation;
use crate::rank::{ARGUMENT, Buffer, I32, MOMENT, OK, PROGRESS, Rank};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases! {
        1..=4 => window_has_the_users_pointer, windows_are_distinct_and_deregistered_once;
        2..=4 => puts_exchange_blocks;
        2..=2 => puts_to_one_peer_are_ordered, window_in_a_group;
        3..=3 => signals_are_counted_by_pair_and_index;
        1..=1 => window_of_one_rank_accepts_any_memory;
    }
}

/// Registers a buffer. The case is skipped if NCCL registers no window here, which is no error.
fn register(rank: &Rank, comm: ncclComm_t, buffer: &Buffer<'_>) -> ncclWindow_t {
    let (mut window, flags) = (ptr::null_mut(), NCCL_WIN_COLL_SYMMETRIC as c_int);
    check!(rank, ncclCommWindowRegister(comm, buffer.at(0), buffer.bytes, &mut window, flags));
    rank.finish(comm);
    if window.is_null() {
        assert!(!rank.implementation.is_cpu_backend());
        rank.skip("ncclCommWindowRegister succeeded and made no window");
    }
    window
}

/// Deregisters a window when no rank works with it.
fn deregister(rank: &Rank, comm: ncclComm_t, window: ncclWindow_t, name: &str) {
    rank.synchronize();
    rank.barrier(name);
    check!(rank, ncclCommWindowDeregister(comm, window));
}

fn description(count: c_int, peer: usize) -> ncclWaitSignalDesc_t {
    ncclWaitSignalDesc_t { opCnt: count, peer: peer as c_int, sigIdx: 0, ctx: 0 }
}

fn wait(rank: &Rank, descriptions: &mut [ncclWaitSignalDesc_t], comm: ncclComm_t) {
    let (number, list) = (descriptions.len() as c_int, descriptions.as_mut_ptr());
    check!(rank, ncclWaitSignal(number, list, comm, rank.stream()));
}

type From<'a> = (&'a Buffer<'a>, usize, usize);

/// Puts elements of a buffer into a peer's part of a window, from an element on.
fn put(rank: &Rank, comm: ncclComm_t, from: From<'_>, (peer, window, to): (usize, ncclWindow_t, usize)) {
    let (buffer, start, count) = from;
    let (place, peer, stream) = (buffer.at(4 * start), peer as c_int, rank.stream());
    check!(rank, ncclPutSignal(place, count, I32, peer, window, 4 * to, 0, 0, 0, comm, stream));
}

fn window_has_the_users_pointer(rank: &Rank) {
    let (comm, buffer) = (rank.join("communicator"), rank.upload_to_nccl(&[1_i32; 4096]));
    let (window, mut pointer) = (register(rank, comm, &buffer), ptr::null_mut());
    check!(rank, ncclWinGetUserPtr(comm, window, &mut pointer));
    assert_eq!(pointer, buffer.at(0));
    rank.start_sum(comm, &buffer);
    assert_eq!(buffer.read::<i32>(), [rank.size as i32; 4096]);
    deregister(rank, comm, window, "all sums are right");
    check!(rank, ncclMemFree(buffer.at(0)));
    rank.assert_works(comm);
    rank.destroy(comm);
}

fn windows_are_distinct_and_deregistered_once(rank: &Rank) {
    if !rank.implementation.is_cpu_backend() {
        rank.skip("NCCL reads what the handle points to");
    }
    let comms = ["one", "other"].map(|name| rank.join(name));
    let buffers = [4096, 8192].map(|count| rank.upload_to_nccl(&vec![0_i32; count]));
    let windows = buffers.each_ref().map(|buffer| register(rank, comms[0], buffer));
    assert_ne!(windows[0], windows[1]);
    let mut pointer = ptr::null_mut();
    let mut user_pointer = |comm, window| call!(rank, ncclWinGetUserPtr(comm, window, &mut pointer));
    assert_eq!(user_pointer(comms[1], windows[0]), ARGUMENT);
    rank.assert_last_error(
        "is not a window of this communicator: it is another communicator's, or was destroyed",
    );
    check!(rank, ncclCommWindowDeregister(comms[0], windows[0]));
    assert_eq!(user_pointer(comms[0], windows[0]), ARGUMENT, "already deregistered");
    assert_eq!(call!(rank, ncclCommWindowDeregister(comms[0], windows[0])), ARGUMENT);
    assert_eq!(call!(rank, ncclCommWindowDeregister(comms[0], ptr::null_mut())), OK, "NULL is ignored");
    assert_eq!(user_pointer(comms[0], windows[1]), OK);
    // Windows are deregistered with their communicator.
    rank.barrier("all windows were used");
    comms.into_iter().for_each(|comm| rank.destroy(comm));
    assert_eq!(call!(rank, ncclCommWindowDeregister(comms[0], windows[1])), ARGUMENT);
}

fn window_of_one_rank_accepts_any_memory(rank: &Rank) {
    if rank.implementation.has_device_memory() {
        rank.skip("the memory of a device");
    }
    let (comm, buffer, mut window) = (rank.join("communicator"), rank.upload(&[0_u8; 8192]), ptr::null_mut());
    let place = buffer.at(buffer.at(0).align_offset(4096));
    check!(rank, ncclCommWindowRegister(comm, place, 4096, &mut window, 0));
    assert!(!window.is_null());
    rank.destroy(comm);
}

fn window_in_a_group(rank: &Rank) {
    let (comm, mut windows) = (rank.join("communicator"), [ptr::null_mut(); 2]);
    let buffers = windows.map(|_| rank.upload_to_nccl(&[0_i32; 1024]));
    let code = rank.group(|| {
        for (buffer, window) in buffers.iter().zip(&mut windows) {
            check!(rank, ncclCommWindowRegister(comm, buffer.at(0), buffer.bytes, window, 1));
        }
    });
    assert!(code == OK || code == PROGRESS, "{code:?}: {}", rank.last_error());
    assert!(!rank.implementation.is_cpu_backend() || windows.iter().all(|window| !window.is_null()));
    for (index, window) in windows.into_iter().filter(|window| !window.is_null()).enumerate() {
        deregister(rank, comm, window, &format!("window {index}"));
    }
    rank.destroy(comm);
}

/// In every round, puts a block into every rank's window, this rank's included, and waits for all ranks' blocks.
fn puts_exchange_blocks(rank: &Rank) {
    let (comm, size, me) = (rank.join("communicator"), rank.size, rank.number);
    let element = |from: usize, to: usize, round: usize, index: usize| {
        (from * 1_000_003 + to * 10_007 + round * 101 + index) as i32
    };
    for block in [3, 100_000] {
        // The halves have no word in common: a put accesses whole words, and this rank writes the second half while others put into
        // the first.
        let half = (size * block).next_multiple_of(2);
        let buffer = rank.upload_to_nccl(&vec![0_i32; 2 * half]);
        let window = register(rank, comm, &buffer);
        for round in 0..3 {
            let sent: Vec<i32> =
                (0..size * block).map(|index| element(me, index / block, round, index % block)).collect();
            buffer.write_at(4 * half, &sent);
            rank.barrier(&format!("{block} {round} is written"));
            let mut all: Vec<_> = (0..size).map(|peer| description(1, peer)).collect();
            let code = rank.group(|| {
                wait(rank, &mut all, comm);
                for peer in 0..size {
                    put(rank, comm, (&buffer, half + peer * block, block), (peer, window, me * block));
                }
            });
            rank.expect_success("ncclGroupEnd", code);
            let received = buffer.read_first::<i32>(size * block);
            for (peer, received) in received.chunks(block).enumerate() {
                let is_right = |(index, value): (usize, &i32)| *value == element(peer, me, round, index);
                assert!(received.iter().enumerate().all(is_right), "{peer} to {me} in round {round}");
            }
            rank.barrier(&format!("{block} {round} is checked"));
        }
        deregister(rank, comm, window, &format!("{block} is over"));
    }
    rank.destroy(comm);
}

/// Puts in a group happen when it ends; all puts to one peer keep their order.
fn puts_to_one_peer_are_ordered(rank: &Rank) {
    let comm = rank.join("communicator");
    let buffer = rank.upload_to_nccl(&[[0_i32; 4], [5, 6, 7, 8]].concat());
    let window = register(rank, comm, &buffer);
    rank.barrier("registered");
    if rank.number == 0 {
        put(rank, comm, (&buffer, 4, 3), (1, window, 1));
        let code = rank.group(|| {
            put(rank, comm, (&buffer, 5, 2), (1, window, 0));
            put(rank, comm, (&buffer, 7, 1), (1, window, 1));
        });
        rank.expect_success("ncclGroupEnd", code);
        // A put of no elements raises the signal.
        put(rank, comm, (&buffer, 4, 0), (1, window, 0));
    } else {
        wait(rank, &mut [description(4, 0)], comm);
        assert_eq!(buffer.read::<i32>()[..4], [6, 8, 6, 7]);
    }
    deregister(rank, comm, window, "received");
    rank.destroy(comm);
}

fn signals_are_counted_by_pair_and_index(rank: &Rank) {
    if rank.implementation == Implementation::Gpu {
        rank.skip("it needs three ranks");
    }
    let mut config =
        ncclConfig_t { numRmaCtx: 2, numRmaSig: 3, rmaEagerInit: 1, ..ncclConfig_t::initializer() };
    let comm = rank.join_with("communicator", &mut config);
    let wait_for = |peer, index, context, count| {
        let mut one = ncclWaitSignalDesc_t { opCnt: count, peer, sigIdx: index, ctx: context };
        let code = call!(rank, ncclWaitSignal(1, &mut one, comm, rank.stream()));
        if code == OK && !rank.is_idle_within(MOMENT) { PROGRESS } else { code }
    };
    if rank.number != 1 {
        let times = if rank.number == 0 { 3 } else { 1 };
        (0..times).for_each(|_| check!(rank, ncclSignal(1, 2, 1, 0, comm, rank.stream())));
        rank.synchronize();
    }
    rank.barrier("all signals");
    if rank.number == 1 {
        assert_eq!([wait_for(0, 2, 1, 2), wait_for(0, 2, 1, 1), wait_for(2, 2, 1, 1)], [OK; 3]);
        for (index, context) in [(-1, 0), (3, 0), (0, -1), (0, 2), (c_int::MAX, c_int::MAX)] {
            assert_eq!(call!(rank, ncclSignal(0, index, context, 0, comm, rank.stream())), ARGUMENT);
            assert_eq!(wait_for(0, index, context, 1), ARGUMENT);
        }
        rank.assert_last_error("invalid ctx 2147483647: it has to be in 0..2");
    }
    rank.barrier("received");
    // Another signal, or one more of the same, does not arrive.
    if rank.number == 1 && !rank.implementation.has_device_memory() {
        ["0 is destroyed", "2 is destroyed"].iter().for_each(|name| drop(rank.receive(name)));
        assert_eq!([wait_for(0, 2, 1, 1), wait_for(0, 1, 1, 1)], [ncclResult_t::ncclRemoteError; 2]);
    }
    rank.destroy(comm);
    rank.publish(&format!("{} is destroyed", rank.number), "");
}

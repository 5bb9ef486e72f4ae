//! One-sided operations: puts into windows, and signals.
#![allow(unsafe_code)]

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
use libnccl::sys::{
    ncclComm_t, ncclConfig_t, ncclDataType_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t,
};

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

fn element(from: usize, to: usize, round: usize, index: usize) -> i32 {
    (from * 1_000_003 + to * 10_007 + round * 101 + index) as i32
}

/// Allocates the memory of an exchange. Its halves have no word in common: a put accesses whole words, and this rank writes the
/// second half while others put into the first.
fn exchange_memory(ranks: usize, block: usize) -> Memory {
    Memory::new(2 * (ranks * block).next_multiple_of(2))
}

/// In every round, puts a block into every rank's window, this rank's included, and waits for all ranks' blocks.
fn exchange(rank: usize, ranks: usize, block: usize, memory: &Memory, win: ncclWindow_t, comm: ncclComm_t) {
    for round in 0..3 {
        let elements = memory.elements();
        let (received, sent) = elements.split_at_mut(elements.len() / 2);
        let (received, sent) = (&received[..ranks * block], &mut sent[..ranks * block]);
        for (index, element_at) in sent.iter_mut().enumerate() {
            *element_at = element(rank, index / block, round, index % block);
        }
        assert_eq!(nccl!(ncclGroupStart()), OK);
        let mut all: Vec<_> = (0..ranks).map(|peer| description(1, peer)).collect();
        assert_eq!(wait(&mut all, comm), OK, "{}", last_error());
        for (peer, sent) in sent.chunks(block).enumerate() {
            assert_eq!(put(sent, peer, win, rank * block, comm), OK, "{}", last_error());
        }
        assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
        for (peer, received) in received.chunks(block).enumerate() {
            let right = |(index, value): (usize, &i32)| *value == element(peer, rank, round, index);
            assert!(received.iter().enumerate().all(right), "{peer} to {rank} in round {round}");
        }
        // No rank puts the next round before all have checked this one.
        for peer in 0..ranks {
            assert_eq!(signal(peer, 0, 0, comm), OK, "{}", last_error());
        }
        assert_eq!(wait(&mut all, comm), OK, "{}", last_error());
    }
}

/// A put happens at once, or at the end of its group; puts to one peer keep their order.
#[test]
fn puts_to_one_peer_are_ordered_and_do_not_wait() {
    let (comms, memories, windows) = with_windows(Mode::Group, 2, 4);
    let (Comm(comm), Window(win)) = (comms[0], windows[0]);
    let (mine, theirs) = (memories[0].elements(), memories[1].elements());
    mine.copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(put(&mine[..3], 1, win, 1, comm), OK);
    assert_eq!(theirs[..5], [0, 1, 2, 3, 0]);
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(put(&mine[4..6], 1, win, 0, comm), OK);
    assert_eq!(put(&mine[6..7], 1, win, 1, comm), OK);
    assert_eq!(theirs[..5], [0, 1, 2, 3, 0]);
    assert_eq!(nccl!(ncclGroupEnd()), OK);
    assert_eq!(theirs[..5], [5, 7, 2, 3, 0]);
    assert_eq!(wait(&mut [description(3, 0)], comms[1].0), OK, "three puts in all");
    comms.into_iter().for_each(Comm::destroy);
}

/// Makes communicators with 2 contexts of 3 signals, which need no window.
fn with_signals(ranks: usize) -> Vec<Comm> {
    let id = common::unique_id();
    on_threads(ranks, |rank| {
        let (mut comm, mut config) = (ptr::null_mut(), ncclConfig_t::initializer());
        (config.numRmaCtx, config.numRmaSig, config.rmaEagerInit) = (2, 3, 1);
        assert_eq!(nccl!(ncclCommInitRankConfig(&mut comm, ranks as i32, id, rank as i32, &mut config)), OK);
        Comm(comm)
    })
}

#[test]
fn signals_are_counted_by_pair_and_index_and_consumed_once() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    for (peer, index) in [(0, 2), (0, 1), (2, 2)] {
        let comms = with_signals(3);
        let wait_for = |peer, index, count| {
            wait(&mut [ncclWaitSignalDesc_t { opCnt: count, peer, sigIdx: index, ctx: 1 }], comms[1].0)
        };
        for _ in 0..3 {
            assert_eq!(signal(1, 2, 1, comms[0].0), OK);
        }
        [comms[0], comms[2]].into_iter().for_each(Comm::destroy);
        assert_eq!([wait_for(0, 2, 2), wait_for(0, 2, 1)], [OK; 2]);
        assert_eq!(wait_for(peer, index, 1), REMOTE);
        assert_last_error(&format!("rank {peer} has left"));
        comms[1].destroy();
    }
}

#[test]
fn signal_index_or_context_out_of_range_is_invalid_argument() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    let comms = with_signals(2);
    let (Comm(one), Comm(two)) = (comms[0], comms[1]);
    for (index, context) in [(-1, 0), (3, 0), (0, -1), (0, 2), (i32::MAX, i32::MAX)] {
        assert_eq!(signal(1, index, context, one), ARGUMENT);
        let description = ncclWaitSignalDesc_t { opCnt: 1, peer: 0, sigIdx: index, ctx: context };
        assert_eq!(wait(&mut [description], two), ARGUMENT);
    }
    assert_last_error("invalid ctx 2147483647: it has to be in 0..2");
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn signals_beyond_those_that_a_rank_has_are_refused_when_used() {
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
fn put_and_signal_with_invalid_arguments_fail() {
    let _alone = alone();
    let (comms, memories, windows) = with_windows(Mode::Group, 2, 1024);
    let (Comm(comm), Window(win), mine) = (comms[0], windows[0], memories[0].start);
    let put = |from: *const i32, count, data_type, peer, win, offset, index, context, flags, comm| {
        let data_type = ncclDataType_t(data_type);
        let from = from.cast();
        nccl!(ncclPutSignal(from, count, data_type, peer, win, offset, index, context, flags, comm, STREAM))
    };
    assert_eq!(put(mine, 1, 2, 1, win, 0, 0, 0, 0, comm), OK);
    assert_eq!(put(mine, 1, 2, 1, win, 0, 0, 0, 0, ptr::null_mut()), ARGUMENT);
    assert_eq!(put(mine, 1, 99, 1, win, 0, 0, 0, 0, comm), ARGUMENT);
    for peer in [-1, 2] {
        assert_eq!(put(mine, 1, 2, peer, win, 0, 0, 0, 0, comm), ARGUMENT);
    }
    for wrong in [ptr::null_mut(), windows[1].0, ptr::dangling_mut()] {
        assert_eq!(put(mine, 1, 2, 1, wrong, 0, 0, 0, 0, comm), ARGUMENT);
        assert_last_error("is not a window of this communicator");
    }
    assert_eq!(put(mine, 1, 2, 1, win, 0, 1, 0, 0, comm), ARGUMENT);
    assert_eq!(put(mine, 1, 2, 1, win, 0, 0, 1, 0, comm), ARGUMENT);
    assert_eq!(put(mine, 1, 2, 1, win, 0, 0, 0, 1, comm), ARGUMENT);
    assert_last_error("invalid flags 0x1: they have to be 0");
    // The window has 2048 elements of 4 bytes.
    for (count, offset) in [(2049, 0), (1, 8189), (0, 8193), (1, usize::MAX), (2, usize::MAX - 7)] {
        assert_eq!(put(mine, count, 2, 1, win, offset, 0, 0, 0, comm), ARGUMENT);
        let expected = format!("{} bytes at offset {offset} are not inside the window", count * 4);
        assert_last_error(&expected);
    }
    assert_last_error("rank 1's part has 8192 bytes");
    assert_eq!(put(mine, usize::MAX, 2, 1, win, 0, 0, 0, 0, comm), ARGUMENT);
    let outside = [0i32; 4];
    for from in
        [ptr::null(), outside.as_ptr(), mine.wrapping_sub(1), mine.wrapping_add(2047), memories[1].start]
    {
        assert_eq!(put(from, 2, 2, 1, win, 0, 0, 0, 0, comm), ARGUMENT);
    }
    assert_eq!(put(mine, 8, 2, 0, win, 16, 0, 0, 0, comm), ARGUMENT);
    assert_last_error("overlaps with the destination");
    assert_eq!(put(mine, 8, 2, 0, win, 0, 0, 0, 0, comm), OK, "to itself, at the same address");
    assert_eq!(put(mine, 8, 2, 0, win, 32, 0, 0, 0, comm), OK, "to itself, adjacent");
    // A put of no elements raises the signal.
    assert_eq!(put(ptr::null(), 0, 2, 1, win, 8192, 0, 0, 0, comm), ARGUMENT);
    assert_eq!(put(mine, 0, 2, 1, win, 8192, 0, 0, 0, comm), OK);
    assert_eq!(wait(&mut [description(2, 0)], comms[1].0), OK);

    assert_eq!(nccl!(ncclSignal(1, 0, 0, 7, comm, STREAM)), ARGUMENT);
    assert_eq!(nccl!(ncclSignal(2, 0, 0, 0, comm, STREAM)), ARGUMENT);
    assert_eq!(nccl!(ncclWaitSignal(-1, ptr::null_mut(), comm, STREAM)), ARGUMENT);
    assert_eq!(nccl!(ncclWaitSignal(1, ptr::null_mut(), comm, STREAM)), ARGUMENT);
    assert_eq!(nccl!(ncclWaitSignal(0, ptr::null_mut(), comm, STREAM)), ARGUMENT, "no signals to wait for");
    assert_eq!(wait(&mut [description(-1, 0)], comm), ARGUMENT);
    assert_eq!(wait(&mut [description(1, 2)], comm), ARGUMENT);
    comms.into_iter().for_each(Comm::destroy);
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

/// A rank that gave up a registration may free its memory, although another rank's registration succeeds later.
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
    "exchange" => exchange_in_process,
    "wait_for_exited_rank" => wait_for_exited_rank,
    "put_into_deregistered" => put_into_deregistered_part,
}

/// Puts as rank 0 into the part that rank 1 has deregistered.
fn put_into_deregistered_part(process: &RankProcess) {
    let Comm(comm) = process.join();
    let (memory, mut win) = (Memory::new(4), ptr::null_mut());
    assert_eq!(register(comm, &memory, &mut win), OK, "{}", last_error());
    if process.rank() == 1 {
        assert_eq!(nccl!(ncclCommWindowDeregister(comm, win)), OK);
        assert_eq!(signal(0, 0, 0, comm), OK);
        assert_eq!(wait(&mut [description(1, 0)], comm), OK);
        assert_eq!(memory.elements(), [0; 4]);
    } else {
        assert_eq!(wait(&mut [description(1, 1)], comm), OK);
        memory.elements().fill(7);
        assert_eq!(put(&memory.elements()[..2], 1, win, 0, comm), USAGE);
        assert_last_error("rank 1 has deregistered its part of the window");
        assert_eq!(signal(1, 0, 0, comm), OK);
    }
    Comm(comm).destroy();
}

#[test]
fn put_into_deregistered_part_of_another_process_is_invalid_usage() {
    let _watchdog = Watchdog::new();
    processes::run("put_into_deregistered", 2);
}

/// Exchanges blocks of as many elements as the argument says.
fn exchange_in_process(process: &RankProcess) {
    let (ranks, block) = (process.ranks, process.arguments[0].parse().unwrap());
    let Comm(comm) = process.join();
    let (memory, mut win) = (exchange_memory(ranks, block), ptr::null_mut());
    assert_eq!(register(comm, &memory, &mut win), OK, "{}", last_error());
    assert!(!win.is_null());
    exchange(process.rank(), ranks, block, &memory, win, comm);
    assert_eq!(nccl!(ncclCommWindowDeregister(comm, win)), OK);
    Comm(comm).destroy();
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
fn put_signal_between_processes_delivers_data() {
    let _watchdog = Watchdog::new();
    processes::run("exchange 300000", 2);
    processes::run("exchange 3", 4);
}

#[test]
fn put_signal_between_threads_and_process_delivers_data() {
    let _watchdog = Watchdog::new();
    let (id, ranks, block) = (common::unique_id(), 3, 3);
    let child = processes::spawn("exchange 3", &id, ranks, 1);
    on_threads(ranks, |rank| {
        if rank != 1 {
            let Comm(comm) = common::init_rank(id, ranks, rank).unwrap();
            let (memory, mut win) = (exchange_memory(ranks, block), ptr::null_mut());
            assert_eq!(register(comm, &memory, &mut win), OK, "{}", last_error());
            exchange(rank, ranks, block, &memory, win, comm);
            assert_eq!(nccl!(ncclCommWindowDeregister(comm, win)), OK);
            Comm(comm).destroy();
        }
    });
    processes::finish(child);
}

#[test]
fn wait_signal_for_dead_process_returns_remote_error() {
    let _watchdog = Watchdog::new();
    processes::run("wait_for_exited_rank", 2);
}

//! Sends and receives.

mod common;
#[path = "common/memory.rs"]
mod memory;
#[path = "common/watchdog.rs"]
mod watchdog;
#[path = "common/worker.rs"]
mod worker;

use std::ptr;
use std::thread;
use std::time::Duration;

use common::{Comm, Mode, OK, REMOTE, USAGE, addresses, alone, init, last_error, on_threads, together};
use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclResult_t};
use memory::Memory;
use watchdog::Watchdog;

const I32: ncclDataType_t = ncclDataType_t::ncclInt32;

fn send(buffer: &[i32], peer: usize, comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclSend(buffer.as_ptr().cast(), buffer.len(), I32, peer as i32, comm, ptr::null_mut()))
}

fn receive(buffer: &mut [i32], peer: usize, comm: ncclComm_t) -> ncclResult_t {
    nccl!(ncclRecv(buffer.as_mut_ptr().cast(), buffer.len(), I32, peer as i32, comm, ptr::null_mut()))
}

fn numbers(rank: usize, count: usize) -> Vec<i32> {
    (0..count).map(|index| (index * 31 + rank) as i32).collect()
}

/// In one group, each rank sends to the next and receives from the one before.
#[test]
fn a_ring() {
    for (mode, n, count) in [
        (Mode::Threads, 3, 1),
        (Mode::Threads, 4, 5),
        (Mode::Threads, 3, 100_001),
        (Mode::Group, 1, 100_001),
        (Mode::Group, 2, 7),
        (Mode::Group, 5, 100_001),
    ] {
        let comms = init(mode, n);
        let sends: Vec<_> = (0..n).map(|rank| numbers(rank, count)).collect();
        let mut received = vec![vec![0; count]; n];
        let places = addresses(&mut received);
        together(mode, &comms, |rank, comm| {
            assert_eq!(nccl!(ncclGroupStart()), OK);
            assert_eq!(send(&sends[rank], (rank + 1) % n, comm), OK);
            let (place, from) = (places[rank].0.cast(), ((rank + n - 1) % n) as i32);
            assert_eq!(nccl!(ncclRecv(place, count, I32, from, comm, ptr::null_mut())), OK);
            nccl!(ncclGroupEnd())
        });
        for rank in 0..n {
            assert!(received[rank] == sends[(rank + n - 1) % n], "{mode:?} {n} {count}");
        }
        comms.into_iter().for_each(Comm::destroy);
    }
}

#[test]
fn messages_arrive_in_order_and_whole() {
    let comms = init(Mode::Threads, 2);
    let lengths = [1, 2, 3, 16_380, 16_384, 40_000, 5];
    on_threads(2, |rank| {
        for (index, length) in lengths.into_iter().enumerate() {
            if rank == 0 {
                assert_eq!(send(&numbers(index, length), 1, comms[0].0), OK);
            } else {
                let mut buffer = vec![0; length];
                assert_eq!(receive(&mut buffer, 0, comms[1].0), OK);
                assert!(buffer == numbers(index, length));
            }
        }
    });
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn large_messages_cross_in_a_group_beside_a_collective() {
    let comms = init(Mode::Threads, 2);
    on_threads(2, |rank| {
        let (mine, mut theirs, mut sum) = (numbers(rank, 200_000), vec![0; 200_000], vec![1; 70_000]);
        let Comm(comm) = comms[rank];
        assert_eq!(nccl!(ncclGroupStart()), OK);
        for (part, message) in mine.chunks(50_000).zip(theirs.chunks_mut(50_000)) {
            assert_eq!(send(part, 1 - rank, comm), OK);
            assert_eq!(receive(message, 1 - rank, comm), OK);
        }
        let place = sum.as_mut_ptr().cast();
        let op = libnccl::sys::ncclRedOp_t::ncclSum;
        assert_eq!(nccl!(ncclAllReduce(place, place, 70_000, I32, op, comm, ptr::null_mut())), OK);
        assert_eq!(nccl!(ncclGroupEnd()), OK);
        assert!(theirs == numbers(1 - rank, 200_000));
        assert!(sum.iter().all(|element| *element == 2));
    });
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn a_rank_sends_to_itself_only_if_it_receives_in_the_same_group() {
    let _alone = alone();
    let comms = init(Mode::Group, 1);
    let Comm(comm) = comms[0];
    assert_eq!(send(&[1], 0, comm), USAGE);
    assert!(last_error().contains("sends to itself"), "{}", last_error());
    assert_eq!(receive(&mut [0], 0, comm), USAGE);
    let mut buffer = [0];
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(receive(&mut buffer, 0, comm), OK);
    assert_eq!(send(&[5], 0, comm), OK);
    assert_eq!(nccl!(ncclGroupEnd()), OK);
    assert_eq!(buffer, [5]);
    comms[0].destroy();
}

/// A message that does not match is an error that names both sides; the next one gets through.
#[test]
fn a_mismatch_is_told_and_gone() {
    let _alone = alone();
    let comms = init(Mode::Threads, 2);
    for length in [10, 100_000] {
        let (failed, text) = on_threads(2, |rank| {
            let code = if rank == 0 {
                send(&numbers(0, length), 1, comms[0].0)
            } else {
                receive(&mut [0; 9], 0, comms[1].0)
            };
            (code, last_error())
        })
        .pop()
        .unwrap();
        assert_eq!(failed, USAGE);
        let expected =
            format!("rank 0 called ncclSend(count {length}, ncclInt32) to rank 1, which called ncclRecv");
        assert!(text.contains(&expected), "{text}");
        on_threads(2, |rank| {
            let mut buffer = [0; 2];
            if rank == 0 {
                assert_eq!(send(&[1, 2], 1, comms[0].0), OK);
            } else {
                assert_eq!(receive(&mut buffer, 0, comms[1].0), OK);
                assert_eq!(buffer, [1, 2]);
            }
        });
    }
    // A sender that is still at it is told, too.
    let codes = on_threads(2, |rank| match rank {
        0 => send(&numbers(0, 100_000), 1, comms[0].0),
        _ => receive(&mut [0; 9], 0, comms[1].0),
    });
    assert_eq!(codes, [USAGE, USAGE]);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn who_waits_for_a_rank_that_left_is_told() {
    let _alone = alone();
    let comms = init(Mode::Group, 2);
    assert_eq!(send(&[7], 0, comms[1].0), OK);
    comms[1].destroy();
    let mut buffer = [0];
    assert_eq!(receive(&mut buffer, 1, comms[0].0), OK);
    assert_eq!(buffer, [7], "what it sent before it left still arrives");
    assert_eq!(receive(&mut buffer, 1, comms[0].0), REMOTE);
    assert!(last_error().contains("rank 1 has left"), "{}", last_error());
    comms[0].destroy();
}

/// A message waits in the ring until it is received, and one that fills it leaves no room for another.
#[test]
fn a_send_that_fits_ends_before_the_receive_begins() {
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Group, 2);
    for length in [1, 1000, 4092, 8191, 16_380] {
        assert_eq!(send(&numbers(length, length), 1, comms[0].0), OK);
        let mut buffer = vec![0; length];
        assert_eq!(receive(&mut buffer, 0, comms[1].0), OK);
        assert!(buffer == numbers(length, length), "{length}");
    }
    comms.into_iter().for_each(Comm::destroy);
}

/// The sizes about those where the way of a message changes, one after another, and in groups of all sizes.
#[test]
fn messages_of_all_sizes_in_one_process() {
    let _watchdog = Watchdog::new();
    let lengths = [1, 3, 4, 16_383, 16_384, 16_385, 20_000, 262_143, 262_144, 1_000_000];
    let comms = init(Mode::Threads, 2);
    on_threads(2, |rank| all_sizes(&lengths, rank, { comms[rank] }.0));
    comms.into_iter().for_each(Comm::destroy);
}

fn all_sizes(lengths: &[usize], rank: usize, comm: ncclComm_t) {
    let mut buffers: Vec<Vec<i32>> = lengths.iter().map(|length| vec![0; *length]).collect();
    for (index, buffer) in buffers.iter_mut().enumerate() {
        if rank == index % 2 {
            assert_eq!(send(&numbers(index, buffer.len()), 1 - rank, comm), OK, "{}", last_error());
        } else {
            assert_eq!(receive(buffer, 1 - rank, comm), OK, "{}", last_error());
            assert!(*buffer == numbers(index, buffer.len()), "{}", buffer.len());
        }
    }
    let sent: Vec<Vec<i32>> = lengths.iter().map(|length| numbers(rank + length, *length)).collect();
    assert_eq!(nccl!(ncclGroupStart()), OK);
    for (sent, buffer) in sent.iter().zip(&mut buffers) {
        assert_eq!(send(sent, 1 - rank, comm), OK);
        assert_eq!(receive(buffer, 1 - rank, comm), OK);
    }
    assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
    for buffer in buffers {
        assert!(buffer == numbers(1 - rank + buffer.len(), buffer.len()), "{}", buffer.len());
    }
}

/// A rank sends to itself. Where the buffers overlap, it gets at least the beginning of what was there.
#[test]
fn a_rank_sends_itself_a_long_message() {
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Group, 1);
    let Comm(comm) = comms[0];
    let count = 100_000;
    let mut buffer = numbers(1, count + 50_000);
    for offset in [0, 20_000, 50_000] {
        let place = buffer.as_mut_ptr();
        let (from, to) = (place.cast(), place.wrapping_add(offset).cast());
        assert_eq!(nccl!(ncclGroupStart()), OK);
        assert_eq!(nccl!(ncclSend(from, count, I32, 0, comm, ptr::null_mut())), OK);
        assert_eq!(nccl!(ncclRecv(to, count, I32, 0, comm, ptr::null_mut())), OK);
        assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
        assert_eq!(buffer[offset..][..1000], numbers(1, 1000), "{offset}");
        buffer = numbers(1, count + 50_000);
    }
    comms[0].destroy();
}

/// Who waits with a long message for a rank that leaves is told, too.
#[test]
fn a_long_send_to_a_rank_that_leaves_ends() {
    let _alone = alone();
    let _watchdog = Watchdog::new();
    let comms = init(Mode::Threads, 2);
    let codes = on_threads(2, |rank| {
        if rank == 1 {
            thread::sleep(Duration::from_millis(20));
            comms[1].destroy();
            return REMOTE;
        }
        send(&numbers(0, 100_000), 1, comms[0].0)
    });
    assert_eq!(codes, [REMOTE; 2]);
    assert!(last_error().contains("rank 1 has left"), "{}", last_error());
    comms[0].destroy();
}

/// What a rank's process does: long messages from and to memory of either kind.
#[test]
fn worker() {
    let Some(worker::Worker { task, rank, comm: Comm(comm), .. }) = worker::told() else { return };
    if task == "mismatch" {
        let code = if rank == 0 {
            let memory = Memory::new(100_000);
            send(memory.elements(), 1, comm)
        } else {
            receive(&mut vec![0; 99_999], 0, comm)
        };
        assert_eq!(code, USAGE);
        let expected = "rank 0 called ncclSend(count 100000, ncclInt32) to rank 1, which called \
                        ncclRecv(count 99999, ncclInt32)";
        assert!(last_error().contains(expected), "{}", last_error());
    }
    for round in 0..3 {
        for shared in [false, true] {
            let (memory, mut private) = (Memory::new(400_000), vec![0; 400_000]);
            let buffer = if shared { memory.elements() } else { &mut private };
            if rank == round % 2 {
                buffer.copy_from_slice(&numbers(round, 400_000));
                assert_eq!(send(buffer, 1 - rank, comm), OK, "{}", last_error());
            } else {
                assert_eq!(receive(buffer, 1 - rank, comm), OK, "{}", last_error());
                assert!(*buffer == numbers(round, 400_000), "{round} {shared}");
            }
        }
    }
    all_sizes(&[1, 16_385, 5, 500_000], rank, comm);
    Comm(comm).destroy();
}

#[test]
fn processes_send_each_other_long_messages() {
    let _watchdog = Watchdog::new();
    worker::together("long messages", 2);
}

#[test]
fn a_mismatch_between_processes_is_told() {
    let _watchdog = Watchdog::new();
    worker::together("mismatch", 2);
}
